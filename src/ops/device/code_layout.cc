#include "ops/device/code_layout.h"

#include <algorithm>
#include <cstring>

#include "ops/device/kernels.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

bool same_groups(const TensorView& a, const TensorView& b) {
  if (a.empty() || b.empty()) return a.empty() && b.empty();
  return std::memcmp(a.data, b.data, a.size_bytes()) == 0;
}

bool same_form(const QuantizedPart& a, const QuantizedPart& b) {
  return a.kind == b.kind && a.group_size == b.group_size && a.scale_rows == b.scale_rows &&
         a.out_features % a.scale_rows == 0 && a.scales.dtype == b.scales.dtype &&
         a.zeros.empty() == b.zeros.empty() && same_groups(a.group_of, b.group_of);
}

Index round_up(Index value, Index unit) { return (value + unit - 1) / unit * unit; }

size_t code_bytes(const CodeRun& run, const CodeOrder& order) {
  const QuantizedPart& first = *run[0];
  const Index codes = num_rows_of(run) * code_stride_bytes(first.kind, order.k);
  const Index index = order.column_of.empty() ? 0 : order.k + first.in_features;
  const AffineLayout affine = affine_layout(run, order);
  Index scales = affine.rows * affine.columns * static_cast<Index>(sizeof(uint32_t));
  if (affine.span == 0)
    for (const QuantizedPart* part : run) {
      scales +=
          part->scales.dim(0) * order.num_units(first) * static_cast<Index>(dtype_size(first.scales.dtype));
      if (!part->zeros.empty()) scales += part->out_features * order.num_units(first);
    }
  return static_cast<size_t>(codes + index * static_cast<Index>(sizeof(int32_t)) + scales);
}

}  // namespace

Index code_stride_bytes(CodeKind kind, Index k) {
  if (kind == CodeKind::kE4M3) return (k + 15) / 16 * 16;
  return (k + kBlockCodes - 1) / kBlockCodes * kBlockCodes / 2;
}

CodeOrder order_of(const QuantizedPart& part) {
  const int word = part.kind == CodeKind::kInt4 ? kInt4Unit : kE4M3Unit;
  const auto group_size = static_cast<int>(part.group_size);
  const Index num_groups = part.scales.dim(1);
  const Index k = part.in_features;
  // One group a row: a size that every block of codes divides.
  if (part.group_of.empty() && num_groups == 1)
    return {.k = k, .group_size = static_cast<int>((k + kBlockCodes - 1) / kBlockCodes) * kBlockCodes};
  if (part.group_of.empty() && group_size % word == 0) return {.k = k, .group_size = group_size};
  std::vector<std::vector<int32_t>> columns(static_cast<size_t>(num_groups));
  for (int32_t column = 0; column < k; ++column) {
    const int group = part.group_of.empty() ? column / group_size : part.group_of.as<int32_t>()[column];
    columns[static_cast<size_t>(group)].push_back(column);
  }
  const bool even = std::all_of(columns.begin(), columns.end(),
                                [&](const auto& group) { return std::ssize(group) <= group_size; });
  CodeOrder order{.group_size = even && group_size % word == 0 ? group_size : word};
  for (int32_t group = 0; group < num_groups; ++group) {
    const std::vector<int32_t>& own = columns[static_cast<size_t>(group)];
    order.column_of.insert(order.column_of.end(), own.begin(), own.end());
    while (std::ssize(order.column_of) % order.group_size != 0) order.column_of.push_back(-1);
    order.group_of_unit.resize(order.column_of.size() / static_cast<size_t>(order.group_size), group);
  }
  order.k = std::ssize(order.column_of);
  return order;
}

CodeRun run_from(std::span<const WeightPart> parts, size_t begin) {
  CodeRun run;
  for (size_t i = begin; i < parts.size(); ++i) {
    const auto* part = std::get_if<QuantizedPart>(&parts[i]);
    if (part == nullptr || (!run.empty() && !same_form(*run.back(), *part))) break;
    run.push_back(part);
  }
  return run;
}

Index num_rows_of(const CodeRun& run) {
  Index rows = 0;
  for (const QuantizedPart* part : run) rows += part->out_features;
  return rows;
}

AffineLayout affine_layout(const CodeRun& run, const CodeOrder& order) {
  const QuantizedPart& first = *run[0];
  if (first.kind != CodeKind::kInt4 || first.scale_rows != 1 ||
      dtype_size(first.scales.dtype) != sizeof(uint16_t))
    return {};
  const int span = order.group_size % 128 == 0 ? 128 : order.group_size % 64 == 0 ? 64 : kInt4Unit;
  return {.span = span,
          .per_group = order.group_size / span,
          .rows = code_stride_bytes(first.kind, order.k) * 2 / span,
          .columns = round_up(num_rows_of(run), kTileRows)};
}

Index rows_at_once(Index n, Index row_bytes, size_t limit_bytes) {
  constexpr Index kRowStep = 8;
  if (limit_bytes == 0 || static_cast<size_t>(n * row_bytes) <= limit_bytes) return n;
  const Index fit = static_cast<Index>(limit_bytes) / row_bytes / kRowStep * kRowStep;
  return std::min(n, std::max(fit, kRowStep));
}

size_t workspace_bytes(const CodeRun& run, const CodeOrder& order, DType dtype,
                       const BackendOptions& options) {
  const auto size = static_cast<Index>(dtype_size(dtype));
  const Index row_bytes = padded_columns(run[0]->in_features, dtype) * size;
  const Index unpacked =
      options.dequant_prefill
          ? rows_at_once(num_rows_of(run), row_bytes, options.dequant_workspace_bytes) * row_bytes
          : 0;
  const Index ordered = order.column_of.empty() ? 0 : kFusedRows * order.k * size;
  return static_cast<size_t>(std::max(unpacked, ordered));
}

PackedBytes packed_bytes(std::span<const WeightPart> parts, DType dtype, const BackendOptions& options) {
  PackedBytes bytes;
  for (size_t i = 0; i < parts.size();) {
    const CodeRun run = run_from(parts, i);
    if (run.empty()) {
      bytes.weight +=
          static_cast<size_t>(out_features_of(parts[i]) * padded_columns(in_features_of(parts[i]), dtype)) *
          dtype_size(dtype);
      ++i;
      continue;
    }
    const CodeOrder order = order_of(*run[0]);
    bytes.weight += code_bytes(run, order);
    bytes.workspace = std::max(bytes.workspace, workspace_bytes(run, order, dtype, options));
    i += run.size();
  }
  return bytes;
}

}  // namespace longspan::ops::device
