// Packing of quantised rows for a device, and which kernel multiplies which rows with them.
//
// Decode rows are multiplied with the codes as they are, 16 rows at a time. Prompt rows, however few, have
// the rows of the weight unpacked once into the shared workspace and take the dense product: which form a row
// takes depends on what it is, not on how many share the call, for the two round differently. By bytes the
// second form would win from 144 decode rows on (9 times the bytes of 4-bit codes, against once for 16 rows),
// with FP8 codes from 80 on.
#include "ops/device/quantized_weight.h"

#include <algorithm>
#include <cstring>

#include "core/log.h"
#include "core/thread_pool.h"
#include "core/units.h"
#include "ops/device/code_layout.h"
#include "ops/device/dequant_workspace.h"

namespace longspan::ops::device {
namespace {

constexpr Index kCodeStagingBytes = Index{64} << 20;
constexpr Index kRowsOfATask = 32;  // of codes, scales or zeros that a thread packs at once

// Eight codes side by side in four bytes: even ones to the low half, odd ones to the high half.
uint32_t split_codes(uint32_t word) {
  uint32_t low = word & 0x0f0f0f0fu, high = (word >> 4) & 0x0f0f0f0fu;
  const auto gather = [](uint32_t nibbles) {  // four bytes' low halves to 16 bits
    nibbles = (nibbles | nibbles >> 4) & 0x00ff00ffu;
    return (nibbles | nibbles >> 8) & 0xffffu;
  };
  return gather(low) | gather(high) << 16;
}

// 128 codes in their order, to their places.
void pack_block(const uint8_t* from, uint8_t* to) {
  uint32_t words[kBlockWords], placed[kBlockWords];
  std::memcpy(words, from, sizeof(words));
  for (int t = 0; t < 4; ++t)
    for (int j = 0; j < 4; ++j) placed[4 * t + j] = split_codes(words[4 * j + t]);
  std::memcpy(to, placed, sizeof(placed));
}

// The codes of a row in an order; zeros where there is none.
void reorder(CodeKind kind, const uint8_t* from, const std::vector<int32_t>& column_of,
             std::vector<uint8_t>& to) {
  const bool int4 = kind == CodeKind::kInt4;
  to.assign(int4 ? (column_of.size() + 1) / 2 : column_of.size(), 0);
  for (size_t i = 0; i < column_of.size(); ++i) {
    const int32_t column = column_of[i];
    if (column < 0) continue;
    if (int4)
      to[i / 2] |= static_cast<uint8_t>((from[column / 2] >> (column % 2 * 4) & 15) << (i % 2 * 4));
    else
      to[i] = from[column];
  }
}

// k codes side by side to where kernels want them.
void pack_codes(CodeKind kind, Index k, const uint8_t* from, uint8_t* to) {
  const Index num_bytes = kind == CodeKind::kE4M3 ? k : (k + 1) / 2;
  if (kind == CodeKind::kE4M3) {
    std::memcpy(to, from, static_cast<size_t>(num_bytes));
    std::memset(to + num_bytes, 0, static_cast<size_t>(code_stride_bytes(kind, k) - num_bytes));
    return;
  }
  constexpr Index kBlockBytes = kBlockCodes / 2;
  const Index whole = k / kBlockCodes * kBlockBytes;
  for (Index at = 0; at < whole; at += kBlockBytes) pack_block(from + at, to + at);
  if (whole == num_bytes) return;
  uint8_t last[kBlockBytes] = {};
  std::memcpy(last, from + whole, static_cast<size_t>(num_bytes - whole));
  if (k % 2 != 0) last[num_bytes - whole - 1] &= 0x0f;  // an odd K leaves half a byte
  pack_block(last, to + whole);
}

Buffer upload_ints(Device& device, const std::vector<int32_t>& values) {
  if (values.empty()) return {};
  Buffer moved = device.allocate(DType::kI32, {std::ssize(values)});
  device.upload(moved.data(), values.data(), moved.size_bytes());
  return moved;
}

// Scales or zeros of all rows, one for each unit of the order.
Buffer upload_rows(const Context& context, const CodeRun& run, const CodeOrder& order,
                   const TensorView QuantizedPart::*field) {
  const TensorView& first = run[0]->*field;
  if (first.empty()) return {};
  Index rows = 0;
  for (const QuantizedPart* part : run) rows += (part->*field).dim(0);
  const Index columns = order.num_units(*run[0]);
  const auto size = static_cast<Index>(dtype_size(first.dtype));
  const Buffer all(first.dtype, {rows, columns});
  char* to = static_cast<char*>(all.data());
  for (const QuantizedPart* part : run) {
    const TensorView& view = part->*field;
    context.pool.parallel_ranges(view.dim(0), kRowsOfATask, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i)
        for (Index unit = 0; unit < columns; ++unit)
          std::memcpy(
              to + (i * columns + unit) * size,
              static_cast<const char*>(view.data) + (i * view.stride(0) + order.group_of(unit)) * size,
              static_cast<size_t>(size));
    });
    to += view.dim(0) * columns * size;
  }
  Buffer moved = context.device.allocate(first.dtype, {rows, columns});
  context.device.upload(moved.data(), all.data(), all.size_bytes());
  return moved;
}

Buffer upload_codes(const Context& context, const CodeRun& run, const CodeOrder& order, Index num_rows) {
  const CodeKind kind = run[0]->kind;
  const Index stride = code_stride_bytes(kind, order.k);
  Buffer codes = context.device.allocate(DType::kU8, {num_rows, stride});
  const Index at_once = std::max<Index>(1, kCodeStagingBytes / stride);
  Buffer staging;
  char* to = static_cast<char*>(codes.data());
  for (const QuantizedPart* part : run)
    for (Index first = 0; first < part->out_features; first += at_once) {
      const Index count = std::min(at_once, part->out_features - first);
      if (staging.data() == nullptr) staging = Buffer(DType::kU8, {std::min(at_once, num_rows), stride});
      context.pool.parallel_ranges(count, kRowsOfATask, [&](Index begin, Index end) {
        std::vector<uint8_t> ordered;
        for (Index i = begin; i < end; ++i) {
          const uint8_t* row =
              static_cast<const uint8_t*>(part->codes.data) + (first + i) * part->codes.stride(0);
          if (!order.column_of.empty()) {
            reorder(kind, row, order.column_of, ordered);
            row = ordered.data();
          }
          pack_codes(kind, order.k, row, static_cast<uint8_t*>(staging.data()) + i * stride);
        }
      });
      context.device.upload(to, staging.data(), static_cast<size_t>(count * stride));
      context.device.wait();  // the staging memory is written again
      to += count * stride;
    }
  return codes;
}

void upload_scales(const Context& context, const CodeRun& run, const CodeOrder& order, PackedRows& rows) {
  rows.scales = upload_rows(context, run, order, &QuantizedPart::scales);
  rows.zeros = upload_rows(context, run, order, &QuantizedPart::zeros);
  rows.view.zeros = {static_cast<uint8_t*>(rows.zeros.data())};
  void* const scales = rows.scales.data();
  const DType dtype = run[0]->scales.dtype;
  if (dtype == DType::kF32) rows.view.scales.floats = {static_cast<float*>(scales)};
  if (dtype == DType::kF16) rows.view.scales.halves = {static_cast<f16_t*>(scales)};
  if (dtype == DType::kBF16) rows.view.scales.bfloats = {static_cast<bf16_t*>(scales)};
}

// Scales and zeros as the matrix product wants them.
void upload_affine(const Context& context, const CodeRun& run, const CodeOrder& order,
                   const AffineLayout& layout, Packing packing, PackedRows& rows) {
  CodeRows& view = rows.view;
  view.affine_span = layout.span;
  view.affine_per_group = layout.per_group;
  view.affine_halves = run[0]->scales.dtype == DType::kF16;
  if (packing == Packing::kGateUp && run.size() == 2 && run[0]->out_features % 8 == 0)
    view.pair_rows = static_cast<int>(run[0]->out_features);
  std::vector<uint32_t> words(static_cast<size_t>(layout.rows * layout.columns));
  Index first = 0;
  for (const QuantizedPart* part : run) {
    context.pool.parallel_ranges(part->out_features, kRowsOfATask, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) {
        const uint16_t* scales = static_cast<const uint16_t*>(part->scales.data) + i * part->scales.stride(0);
        const uint8_t* zeros =
            part->zeros.empty() ? nullptr : part->zeros.as<uint8_t>() + i * part->zeros.stride(0);
        const int place = view.affine_place(static_cast<int>(first + i));
        for (Index at = 0; at < layout.rows; ++at) {
          // Behind K any will do.
          const Index group = order.group_of(std::min<Index>(at / layout.per_group, view.groups - 1));
          const int zero = zeros == nullptr ? view.default_zero : zeros[group];
          words[static_cast<size_t>(at * layout.columns + place)] =
              scales[group] | static_cast<uint32_t>(zero) << 16;
        }
      }
    });
    first += part->out_features;
  }
  rows.affine = context.device.allocate(DType::kI32, {layout.rows, layout.columns});
  context.device.upload(rows.affine.data(), words.data(), rows.affine.size_bytes());
  view.affine = {{static_cast<uint32_t*>(rows.affine.data())}, layout.columns};
}

PackedRows pack_run(const Context& context, const CodeRun& run, DType dtype, Packing packing) {
  const QuantizedPart& first = *run[0];
  PackedRows rows{.kind = first.kind, .out_features = num_rows_of(run), .in_features = first.in_features};
  const CodeOrder order = order_of(first);
  rows.codes = upload_codes(context, run, order, rows.out_features);
  rows.column_of = upload_ints(context.device, order.column_of);
  std::vector<int32_t> place_of(order.column_of.empty() ? 0 : static_cast<size_t>(first.in_features));
  for (size_t i = 0; i < order.column_of.size(); ++i)
    if (order.column_of[i] >= 0) place_of[static_cast<size_t>(order.column_of[i])] = static_cast<int32_t>(i);
  rows.place_of = upload_ints(context.device, place_of);
  rows.view = {.codes = {static_cast<uint32_t*>(rows.codes.data())},
               .place_of = {static_cast<int32_t*>(rows.place_of.data())},
               .default_zero = first.kind == CodeKind::kInt4 ? 8 : 0,
               .n = static_cast<int>(rows.out_features),
               .k = static_cast<int>(order.k),
               .columns = static_cast<int>(first.in_features),
               .stride = static_cast<int>(code_stride_bytes(first.kind, order.k) / 4),
               .groups = static_cast<int>(order.num_units(first)),
               .group_size = order.group_size,
               .scale_rows = static_cast<int>(first.scale_rows)};
  if (const AffineLayout affine = affine_layout(run, order); affine.span != 0)
    upload_affine(context, run, order, affine, packing, rows);
  else
    upload_scales(context, run, order, rows);
  context.dequantised.make_room(run, order, dtype);
  return rows;
}

// Columns begin .. begin + count of the product.
Matmul columns_of(const Matmul& args, Index begin, Index count) {
  Matmul part = args;
  part.out = args.out.cols(begin, count);
  if (!args.bias.empty()) part.bias = TensorView(args.bias.as<float>() + begin, DType::kF32, {count});
  return part;
}

// The dense product with rows that are unpacked for it.
void multiply_unpacked(const Context& context, const Matmul& args, const PackedRows& rows) {
  const DType dtype = args.x.dtype;
  const Index stride = padded_columns(rows.in_features, dtype);
  const Index at_once =
      context.dequantised.rows_at_once(rows.out_features, stride * static_cast<Index>(dtype_size(dtype)));
  for (Index begin = 0; begin < rows.out_features; begin += at_once) {
    const Index count = std::min(at_once, rows.out_features - begin);
    const TensorView to(context.dequantised.data(), dtype, {count, stride});
    dequantize(context, rows.view, rows.kind, begin, to);
    const DeviceWeight weight(Buffer(to.data, dtype, to.shape, [](void*, size_t) {}), count, rows.in_features,
                              stride);
    Matmul part = columns_of(args, begin, count);
    part.weight = &weight;
    if (!context.library.matmul(part)) gemm(context, part);
  }
}

Matmul few_rows(const Matmul& args, Index begin, Index count) {
  Matmul part = args;
  part.x = args.x.rows(begin, count);
  part.out = args.out.rows(begin, count);
  return part;
}

// x in the order of the codes.
TensorView ordered(const Context& context, const TensorView& x, const PackedRows& rows) {
  const TensorView out(context.dequantised.data(), x.dtype, {x.dim(0), rows.view.k});
  gather_columns(context, x, rows.column_of.view(), out);
  return out;
}

// Up to kFusedRows rows with the codes as they are, and `beside`: the same rows of x with a plain weight.
void multiply_fused(const Context& context, Matmul args, const PackedRows& rows, const Matmul* beside) {
  if (rows.column_of.data() != nullptr) args.x = ordered(context, args.x, rows);
  const bool on_units = rows.kind == CodeKind::kInt4 ? w4a16_mma(context, args, rows.view, beside)
                                                     : w8a16_mma(context, args, rows.view, beside);
  if (on_units) return;
  packed_gemv(context, args, rows.view, rows.kind);
  if (beside != nullptr) gemv(context, *beside);
}

// beside: the product of the decode rows with a plain weight, or null.
void multiply(const Context& context, const Matmul& args, const PackedRows& rows, Index num_decode,
              const Matmul* beside) {
  const Index num_rows = args.x.dim(0);
  const Index num_fused = context.dequant_prefill ? num_decode : num_rows;
  for (Index begin = 0; begin < num_fused; begin += kFusedRows) {
    const Index count = std::min(kFusedRows, num_fused - begin);
    const Matmul few_beside = beside != nullptr ? few_rows(*beside, begin, count) : Matmul{};
    multiply_fused(context, few_rows(args, begin, count), rows, beside != nullptr ? &few_beside : nullptr);
  }
  if (num_fused < num_rows) multiply_unpacked(context, few_rows(args, num_fused, num_rows - num_fused), rows);
}

// Part i where it is a dense one of few rows: a launch of its own costs more than reading it.
const Weight* narrow_part(const QuantizedDeviceWeight& weight, size_t i) {
  constexpr Index kNarrow = 256;  // rows; the 27B's in_proj_b and in_proj_a have 96
  if (i >= weight.parts().size()) return nullptr;
  const auto* dense = std::get_if<std::unique_ptr<Weight>>(&weight.parts()[i]);
  return dense != nullptr && (*dense)->out_features <= kNarrow ? dense->get() : nullptr;
}

}  // namespace

void DequantWorkspace::make_room(const CodeRun& run, const CodeOrder& order, DType dtype) {
  size_bytes_ = std::max(size_bytes_, workspace_bytes(run, order, dtype, options_));
  scratch_.reserve(size_bytes_);
  const Index n = num_rows_of(run), k = run[0]->in_features;
  const Index row_bytes = padded_columns(k, dtype) * static_cast<Index>(dtype_size(dtype));
  const Index rows = rows_at_once(n, row_bytes);
  const std::pair<Index, Index> shape(n, k);
  if (!options_.dequant_prefill || rows == n || std::find(told_.begin(), told_.end(), shape) != told_.end())
    return;
  told_.push_back(shape);
  log(LogLevel::kInfo,
      "weights of {} x {} are unpacked in parts of {} rows: they take {}, the workspace may take {}", n, k,
      rows, format_bytes(static_cast<size_t>(n * row_bytes)), format_bytes(options_.dequant_workspace_bytes));
}

QuantizedDeviceWeight::QuantizedDeviceWeight(std::vector<Part> parts, DType dtype)
    : parts_(std::move(parts)), dtype_(dtype) {
  for (const Part& part : parts_) {
    const auto* rows = std::get_if<PackedRows>(&part);
    const auto* dense = std::get_if<std::unique_ptr<Weight>>(&part);
    out_features += rows != nullptr ? rows->out_features : (*dense)->out_features;
    in_features = rows != nullptr ? rows->in_features : (*dense)->in_features;
  }
}

size_t QuantizedDeviceWeight::size_bytes() const {
  size_t bytes = 0;
  for (const Part& part : parts_) {
    const auto* rows = std::get_if<PackedRows>(&part);
    bytes += rows != nullptr ? rows->size_bytes() : std::get<std::unique_ptr<Weight>>(part)->size_bytes();
  }
  return bytes;
}

std::unique_ptr<Weight> pack_quantized(const Context& context, std::span<const WeightPart> parts, DType dtype,
                                       Packing packing) {
  std::vector<QuantizedDeviceWeight::Part> packed;
  for (size_t i = 0; i < parts.size();) {
    if (std::holds_alternative<TensorView>(parts[i])) {
      std::vector<TensorView> dense;
      for (; i < parts.size() && std::holds_alternative<TensorView>(parts[i]); ++i)
        dense.push_back(std::get<TensorView>(parts[i]));
      packed.emplace_back(pack(context, dense, dtype));
      continue;
    }
    const CodeRun run = run_from(parts, i);
    packed.emplace_back(pack_run(context, run, dtype, packing));
    i += run.size();
  }
  return std::make_unique<QuantizedDeviceWeight>(std::move(packed), dtype);
}

Index matmul_swiglu_quantized(const Context& context, const MatmulSwiGlu& args,
                              const QuantizedDeviceWeight& weight, Index num_decode) {
  const auto* rows = weight.parts().size() == 1 ? std::get_if<PackedRows>(&weight.parts()[0]) : nullptr;
  if (rows == nullptr) return 0;
  for (Index begin = 0; begin < num_decode; begin += kFusedRows) {
    const Index count = std::min(kFusedRows, num_decode - begin);
    Matmul few{.x = args.x.rows(begin, count), .weight = &weight, .out = args.out.rows(begin, count)};
    if (rows->column_of.data() != nullptr) few.x = ordered(context, few.x, *rows);
    const bool on_units = rows->kind == CodeKind::kInt4 ? w4a16_mma_swiglu(context, few, rows->view)
                                                        : w8a16_mma_swiglu(context, few, rows->view);
    if (!on_units) return begin;
  }
  return num_decode;
}

void matmul_quantized(const Context& context, const Matmul& args, const QuantizedDeviceWeight& weight,
                      Index num_decode) {
  const Index num_rows = args.x.dim(0);
  Index column = 0;
  const Weight* under_way = nullptr;  // its decode rows went with those of the part before
  for (size_t i = 0; i < weight.parts().size(); ++i) {
    if (const auto* rows = std::get_if<PackedRows>(&weight.parts()[i])) {
      const Matmul packed = columns_of(args, column, rows->out_features);
      column += rows->out_features;
      const bool decode_only = context.dequant_prefill || num_decode == num_rows;
      under_way = decode_only ? narrow_part(weight, i + 1) : nullptr;
      Matmul beside;
      if (under_way != nullptr) beside = columns_of(args, column, under_way->out_features);
      beside.weight = under_way;
      multiply(context, packed, *rows, num_decode, under_way != nullptr ? &beside : nullptr);
      continue;
    }
    const Weight& dense = *std::get<std::unique_ptr<Weight>>(weight.parts()[i]);
    Matmul product = columns_of(args, column, dense.out_features);
    column += dense.out_features;
    product.weight = &dense;
    product.num_decode_rows = num_decode;
    if (&dense == under_way) {
      product = few_rows(product, num_decode, num_rows - num_decode);
      product.num_decode_rows = 0;
    }
    matmul(context, product);
  }
}

}  // namespace longspan::ops::device
