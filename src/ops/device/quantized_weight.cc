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
#include "core/units.h"
#include "ops/device/dequant_workspace.h"

namespace longspan::ops::device {
namespace {

constexpr Index kCodeStagingBytes = Index{64} << 20;

Index code_stride_bytes(CodeKind kind, Index k) {
  if (kind == CodeKind::kE4M3) return (k + 15) / 16 * 16;
  return (k + kBlockCodes - 1) / kBlockCodes * kBlockCodes / 2;
}

// How the codes of a row lie: CodeRows says why.
struct Order {
  Index k = 0;                         // places
  int group_size = 0;                  // of them
  std::vector<int32_t> column_of;      // [k], -1: no code lies there. Empty: as in the part, and so is
  std::vector<int32_t> group_of_unit;  // [k / group_size], the part's group of each of these
};

Order order_of(const QuantizedPart& part) {
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
  Order order{.group_size = even && group_size % word == 0 ? group_size : word};
  for (int32_t group = 0; group < num_groups; ++group) {
    const std::vector<int32_t>& own = columns[static_cast<size_t>(group)];
    order.column_of.insert(order.column_of.end(), own.begin(), own.end());
    while (std::ssize(order.column_of) % order.group_size != 0) order.column_of.push_back(-1);
    order.group_of_unit.resize(order.column_of.size() / static_cast<size_t>(order.group_size), group);
  }
  order.k = std::ssize(order.column_of);
  return order;
}

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

bool same_groups(const TensorView& a, const TensorView& b) {
  if (a.empty() || b.empty()) return a.empty() && b.empty();
  return std::memcmp(a.data, b.data, a.size_bytes()) == 0;
}

// Parts that lie behind each other as one.
bool same_form(const QuantizedPart& a, const QuantizedPart& b) {
  return a.kind == b.kind && a.group_size == b.group_size && a.scale_rows == b.scale_rows &&
         a.out_features % a.scale_rows == 0 && a.scales.dtype == b.scales.dtype &&
         a.zeros.empty() == b.zeros.empty() && same_groups(a.group_of, b.group_of);
}

using Run = std::vector<const QuantizedPart*>;

Buffer upload_ints(Device& device, const std::vector<int32_t>& values) {
  if (values.empty()) return {};
  Buffer moved = device.allocate(DType::kI32, {std::ssize(values)});
  device.upload(moved.data(), values.data(), moved.size_bytes());
  return moved;
}

// Scales or zeros of all rows, one for each unit of the order.
Buffer upload_rows(Device& device, const Run& run, const Order& order,
                   const TensorView QuantizedPart::*field) {
  const TensorView& first = run[0]->*field;
  if (first.empty()) return {};
  Index rows = 0;
  for (const QuantizedPart* part : run) rows += (part->*field).dim(0);
  const Index columns = order.column_of.empty() ? first.dim(1) : std::ssize(order.group_of_unit);
  const auto size = static_cast<Index>(dtype_size(first.dtype));
  Buffer all(first.dtype, {rows, columns});
  char* to = static_cast<char*>(all.data());
  for (const QuantizedPart* part : run) {
    const TensorView& view = part->*field;
    for (Index i = 0; i < view.dim(0); ++i)
      for (Index unit = 0; unit < columns; ++unit, to += size) {
        const Index group = order.column_of.empty() ? unit : order.group_of_unit[static_cast<size_t>(unit)];
        std::memcpy(to, static_cast<const char*>(view.data) + (i * view.stride(0) + group) * size,
                    static_cast<size_t>(size));
      }
  }
  Buffer moved = device.allocate(first.dtype, {rows, columns});
  device.upload(moved.data(), all.data(), all.size_bytes());
  return moved;
}

Buffer upload_codes(Device& device, const Run& run, const Order& order, Index num_rows) {
  const CodeKind kind = run[0]->kind;
  const Index stride = code_stride_bytes(kind, order.k);
  Buffer codes = device.allocate(DType::kU8, {num_rows, stride});
  const Index at_once = std::max<Index>(1, kCodeStagingBytes / stride);
  Buffer staging;
  std::vector<uint8_t> ordered;
  char* to = static_cast<char*>(codes.data());
  for (const QuantizedPart* part : run)
    for (Index begin = 0; begin < part->out_features; begin += at_once) {
      const Index count = std::min(at_once, part->out_features - begin);
      if (staging.data() == nullptr) staging = Buffer(DType::kU8, {std::min(at_once, num_rows), stride});
      for (Index i = 0; i < count; ++i) {
        const uint8_t* row =
            static_cast<const uint8_t*>(part->codes.data) + (begin + i) * part->codes.stride(0);
        if (!order.column_of.empty()) {
          reorder(kind, row, order.column_of, ordered);
          row = ordered.data();
        }
        pack_codes(kind, order.k, row, static_cast<uint8_t*>(staging.data()) + i * stride);
      }
      device.upload(to, staging.data(), static_cast<size_t>(count * stride));
      device.wait();  // the staging memory is written again
      to += count * stride;
    }
  return codes;
}

void upload_scales(Device& device, const Run& run, const Order& order, PackedRows& rows) {
  rows.scales = upload_rows(device, run, order, &QuantizedPart::scales);
  rows.zeros = upload_rows(device, run, order, &QuantizedPart::zeros);
  rows.view.zeros = {static_cast<uint8_t*>(rows.zeros.data())};
  void* const scales = rows.scales.data();
  const DType dtype = run[0]->scales.dtype;
  if (dtype == DType::kF32) rows.view.scales.floats = {static_cast<float*>(scales)};
  if (dtype == DType::kF16) rows.view.scales.halves = {static_cast<f16_t*>(scales)};
  if (dtype == DType::kBF16) rows.view.scales.bfloats = {static_cast<bf16_t*>(scales)};
}

// Scales and zeros as the matrix product wants them, where they fit; else empty, and both go as they are.
void upload_affine(Device& device, const Run& run, const Order& order, PackedRows& rows) {
  const QuantizedPart& first = *run[0];
  CodeRows& view = rows.view;
  if (first.kind != CodeKind::kInt4 || view.scale_rows != 1 ||
      dtype_size(first.scales.dtype) != sizeof(uint16_t))
    return;
  view.affine_span = view.group_size % 128 == 0 ? 128 : view.group_size % 64 == 0 ? 64 : kInt4Unit;
  view.affine_halves = first.scales.dtype == DType::kF16;
  const Index columns = (rows.out_features + kTileRows - 1) / kTileRows * kTileRows;
  view.affine_per_group = view.group_size / view.affine_span;
  const int affine_rows = view.affine_rows();
  std::vector<uint32_t> words(static_cast<size_t>(affine_rows * columns));
  int row = 0;
  for (const QuantizedPart* part : run)
    for (Index i = 0; i < part->out_features; ++i, ++row) {
      const uint16_t* scales = static_cast<const uint16_t*>(part->scales.data) + i * part->scales.stride(0);
      const uint8_t* zeros =
          part->zeros.empty() ? nullptr : part->zeros.as<uint8_t>() + i * part->zeros.stride(0);
      for (int at = 0; at < affine_rows; ++at) {
        const int unit = std::min(at / view.affine_per_group, view.groups - 1);  // behind K any will do
        const int group = order.column_of.empty() ? unit : order.group_of_unit[static_cast<size_t>(unit)];
        const int zero = zeros == nullptr ? view.default_zero : zeros[group];
        words[static_cast<size_t>(at * columns + affine_place(row))] =
            scales[group] | static_cast<uint32_t>(zero) << 16;
      }
    }
  rows.affine = device.allocate(DType::kI32, {affine_rows, columns});
  device.upload(rows.affine.data(), words.data(), rows.affine.size_bytes());
  view.affine = {{static_cast<uint32_t*>(rows.affine.data())}, columns};
}

PackedRows pack_run(const Context& context, const Run& run, DType dtype) {
  const QuantizedPart& first = *run[0];
  PackedRows rows{.kind = first.kind, .in_features = first.in_features};
  for (const QuantizedPart* part : run) rows.out_features += part->out_features;
  const Order order = order_of(first);
  rows.codes = upload_codes(context.device, run, order, rows.out_features);
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
               .groups = static_cast<int>(order.column_of.empty() ? first.scales.dim(1)
                                                                  : std::ssize(order.group_of_unit)),
               .group_size = order.group_size,
               .scale_rows = static_cast<int>(first.scale_rows)};
  upload_affine(context.device, run, order, rows);
  if (rows.view.affine.empty()) upload_scales(context.device, run, order, rows);
  const auto size = static_cast<Index>(dtype_size(dtype));
  if (context.dequant_prefill)
    context.dequantised.make_room(rows.out_features, rows.in_features,
                                  padded_columns(rows.in_features, dtype) * size);
  if (!order.column_of.empty())
    context.dequantised.make_room(static_cast<size_t>(kFusedRows * order.k * size));
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

void multiply(const Context& context, const Matmul& args, const PackedRows& rows, Index num_decode) {
  const Index num_rows = args.x.dim(0);
  const Index num_fused = context.dequant_prefill ? num_decode : num_rows;
  for (Index begin = 0; begin < num_fused; begin += kFusedRows) {
    Matmul part = few_rows(args, begin, std::min(kFusedRows, num_fused - begin));
    if (rows.column_of.data() != nullptr) part.x = ordered(context, part.x, rows);
    if (!w4a16_mma(context, part, rows.view)) packed_gemv(context, part, rows.view, rows.kind);
  }
  if (num_fused < num_rows) multiply_unpacked(context, few_rows(args, num_fused, num_rows - num_fused), rows);
}

}  // namespace

void DequantWorkspace::make_room(Index n, Index k, Index row_bytes) {
  const Index rows = rows_at_once(n, row_bytes);
  make_room(static_cast<size_t>(rows * row_bytes));
  const std::pair<Index, Index> shape(n, k);
  if (rows == n || std::find(told_.begin(), told_.end(), shape) != told_.end()) return;
  told_.push_back(shape);
  log(LogLevel::kInfo,
      "weights of {} x {} are unpacked in parts of {} rows: they take {}, the workspace may take {}", n, k,
      rows, format_bytes(static_cast<size_t>(n * row_bytes)), format_bytes(limit_bytes_));
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

std::unique_ptr<Weight> pack_quantized(const Context& context, std::span<const WeightPart> parts,
                                       DType dtype) {
  std::vector<QuantizedDeviceWeight::Part> packed;
  for (size_t i = 0; i < parts.size();) {
    if (std::holds_alternative<TensorView>(parts[i])) {
      std::vector<TensorView> dense;
      for (; i < parts.size() && std::holds_alternative<TensorView>(parts[i]); ++i)
        dense.push_back(std::get<TensorView>(parts[i]));
      packed.emplace_back(pack(context, dense, dtype));
      continue;
    }
    Run run{&std::get<QuantizedPart>(parts[i++])};
    for (; i < parts.size(); ++i) {
      const auto* next = std::get_if<QuantizedPart>(&parts[i]);
      if (next == nullptr || !same_form(*run.back(), *next)) break;
      run.push_back(next);
    }
    packed.emplace_back(pack_run(context, run, dtype));
  }
  return std::make_unique<QuantizedDeviceWeight>(std::move(packed), dtype);
}

void matmul_quantized(const Context& context, const Matmul& args, const QuantizedDeviceWeight& weight,
                      Index num_decode) {
  Index column = 0;
  for (const QuantizedDeviceWeight::Part& part : weight.parts()) {
    if (const auto* rows = std::get_if<PackedRows>(&part)) {
      multiply(context, columns_of(args, column, rows->out_features), *rows, num_decode);
      column += rows->out_features;
      continue;
    }
    const Weight& dense = *std::get<std::unique_ptr<Weight>>(part);
    Matmul product = columns_of(args, column, dense.out_features);
    product.weight = &dense;
    product.num_decode_rows = num_decode;
    matmul(context, product);
    column += dense.out_features;
  }
}

}  // namespace longspan::ops::device
