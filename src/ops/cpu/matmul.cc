// Linear layers: weights packed once into panels, products of any number of rows through the tile product.
// Every element is one call chain gemm -> round_rows over the whole of K, so neither the number of rows nor
// the cut into tasks can change a bit of it.
#include <algorithm>
#include <vector>

#include "ops/cpu/block_size.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packed_weight.h"
#include "ops/cpu/quantized_weight.h"
#include "ops/cpu/tile_gemm.h"

namespace longspan::ops::cpu {
namespace {

// Panels as they are.
class DenseWeight final : public PackedWeight {
 public:
  DenseWeight(DType dtype, PanelOrder order, Index num_out, Index num_in)
      : PackedWeight(dtype, order, num_out, num_in),
        memory_(static_cast<size_t>(num_panels() * panel_elems()) * dtype_size(dtype)) {}

  size_t size_bytes() const override { return memory_.size_bytes(); }
  const void* panels(Index col, Index, void*) const override {
    return static_cast<const std::byte*>(memory_.data()) + col * column_bytes();
  }

  // First panel that holds column `col` (a multiple of kPanelCols).
  template <class T>
  T* panels_from(Index col) const {
    return static_cast<T*>(memory_.data()) + col / kPanelCols * panel_elems();
  }

 private:
  Buffer memory_;
};

const PackedWeight& packed_weight(const Weight* weight, DType dtype, PanelOrder order) {
  const auto& packed = static_cast<const PackedWeight&>(*weight);
  CHECK_MSG(packed.dtype() == dtype, "weight packed for {}, rows are {}", dtype_name(packed.dtype()),
            dtype_name(dtype));
  CHECK_MSG(packed.order() == order, "weight of the wrong pack function: matmul_swiglu takes pack_gate_up's");
  return packed;
}

template <class From, class To>
void convert(const void* from, Index count, To* to) {
  const From* values = static_cast<const From*>(from);
  if constexpr (std::is_same_v<From, To>)
    std::copy_n(values, count, to);
  else
    for (Index i = 0; i < count; ++i) to[i] = To(static_cast<float>(values[i]));
}

// Row `row` of the stacked parts.
struct PartRow {
  const TensorView* part;
  Index row;
};

PartRow find_row(std::span<const TensorView> parts, Index row) {
  for (const TensorView& part : parts) {
    if (row < part.dim(0)) return {&part, row};
    row -= part.dim(0);
  }
  CHECK_MSG(false, "no such row");
  __builtin_unreachable();
}

// Columns of B are gathered as rows [kPanelCols, K] of T, then turned into a panel.
template <class T>
void pack_panel(std::span<const TensorView> parts, Index panel, const DenseWeight& weight, T* rows) {
  const Index k = weight.in_features;
  if (weight.order() == PanelOrder::kInTurns) parts = parts.subspan(static_cast<size_t>(panel % 2), 1);
  Index num_rows = 0;
  for (const TensorView& part : parts) num_rows += part.dim(0);
  const Index first = (weight.order() == PanelOrder::kInTurns ? panel / 2 : panel) * kPanelCols;
  const Index count = std::min(kPanelCols, num_rows - first);
  for (Index i = 0; i < count; ++i) {
    const PartRow from = find_row(parts, first + i);
    const auto* data = static_cast<const std::byte*>(from.part->data) +
                       from.row * from.part->stride(0) * static_cast<Index>(dtype_size(from.part->dtype));
    dispatch_dtype(from.part->dtype, [&]<class From>() { convert<From>(data, k, rows + i * k); });
  }
  pack_b_transposed(rows, k, k, count, weight.panels_from<T>(panel * kPanelCols));
}

template <class T>
void pack_all(const Context& context, std::span<const TensorView> parts, const DenseWeight& weight) {
  context.scratch.reserve(static_cast<size_t>(kPanelCols * weight.in_features) * sizeof(T));
  context.pool.parallel_for(weight.num_panels(), [&](int64_t panel, int thread) {
    pack_panel(parts, panel, weight, static_cast<T*>(context.scratch.of_thread(thread)));
  });
}

// A thread's room for the panels of one task.
size_t room_bytes(const PackedWeight& weight, const BlockSize& block) {
  return weight.unpacks() ? static_cast<size_t>(round_up(block.cols, kPanelCols) * weight.column_bytes()) : 0;
}

template <class T>
void multiply(const Context& context, const Product& product) {
  const TensorView& x = product.x;
  const PackedWeight& weight = product.weight;
  const TensorView& out = product.out;
  const TypedKernels<T>& kernels = chosen_kernels().of<T>();
  const Index num_rows = x.dim(0);
  BlockSize block =
      block_size(num_rows, product.num_cols(), weight.column_bytes(), context.pool.num_threads());
  if (weight.unpacks()) block.rows = num_rows;  // panels are made once for all of them
  const size_t room = room_bytes(weight, block);
  const Index row_tasks = num_blocks(num_rows, block.rows);
  const Index col_tasks = num_blocks(product.num_cols(), block.cols);
  context.scratch.reserve(room + static_cast<size_t>(kRowsAtOnce * block.cols) * sizeof(float));

  // Row blocks of one slice of columns follow each other: its panels are in the cache by then.
  context.pool.parallel_for(row_tasks * col_tasks, [&](int64_t task, int thread) {
    auto* own = static_cast<std::byte*>(context.scratch.of_thread(thread));
    auto* sums = reinterpret_cast<float*>(own + room);  // [kRowsAtOnce, block.cols]
    const Index col = task / row_tasks * block.cols;
    const Index first = task % row_tasks * block.rows;
    const Index cols = std::min(block.cols, product.num_cols() - col);
    const Index end = std::min(first + block.rows, num_rows);
    const auto* panels = static_cast<const T*>(weight.panels(col, cols, own));
    const Index out_col = product.out_from(col);
    const Index out_cols = std::min(product.out_from(block.cols), out.dim(1) - out_col);
    for (Index row = first; row < end; row += kRowsAtOnce) {
      const Index rows = std::min(kRowsAtOnce, end - row);
      kernels.gemm(x.as<T>() + row * x.stride(0), x.stride(0), panels, sums, block.cols, rows, cols,
                   weight.in_features, Accumulate::kNo);
      T* to = out.as<T>() + row * out.stride(0) + out_col;
      if (product.swiglu)
        kernels.swiglu_rows(sums, block.cols, to, out.stride(0), rows, out_cols);
      else
        kernels.round_rows(sums, block.cols, product.bias_from(col), to, out.stride(0), rows, out_cols);
    }
  });
}

// The same over rows packed for the matrix unit, a chunk of them at a time.
void multiply_packed(const Context& context, const Product& product, const MatrixUnit& unit) {
  const TensorView& x = product.x;
  const PackedWeight& weight = product.weight;
  const TensorView& out = product.out;
  const Index row_block_elems = 2 * weight.panel_elems();  // kPackedRows rows
  const Index chunk_rows = std::min(x.dim(0), kPackedChunkRows);
  const auto block_for = [&](Index num_rows) {
    BlockSize block =
        packed_block_size(num_rows, product.num_cols(), weight.column_bytes(), context.pool.num_threads());
    if (weight.unpacks()) block.rows = num_rows;
    return block;
  };
  const size_t room = room_bytes(weight, block_for(chunk_rows));  // the same for any number of rows
  context.scratch.reserve(room + static_cast<size_t>(num_blocks(chunk_rows, kPackedRows) * row_block_elems) *
                                     sizeof(bf16));
  // All threads read it.
  auto* packed = reinterpret_cast<bf16*>(static_cast<std::byte*>(context.scratch.of_thread(0)) + room);

  for (Index begin = 0; begin < x.dim(0); begin += chunk_rows) {
    const Index num_rows = std::min(chunk_rows, x.dim(0) - begin);
    context.pool.parallel_for(num_blocks(num_rows, kPackedRows), [&](int64_t block, int) {
      const Index row = block * kPackedRows;
      unit.pack_rows(x.as<bf16>() + (begin + row) * x.stride(0), x.stride(0),
                     std::min(kPackedRows, num_rows - row), weight.in_features,
                     packed + block * row_block_elems);
    });
    const BlockSize block = block_for(num_rows);
    const Index row_tasks = num_blocks(num_rows, block.rows);
    const Index col_tasks = num_blocks(product.num_cols(), block.cols);
    context.pool.parallel_for(row_tasks * col_tasks, [&](int64_t task, int thread) {
      const Index col = task / row_tasks * block.cols;
      const Index cols = std::min(block.cols, product.num_cols() - col);
      const void* panels = weight.panels(col, cols, context.scratch.of_thread(thread));
      const Index row = task % row_tasks * block.rows;
      const Index out_col = product.out_from(col);
      unit.multiply_packed({.rows = packed + row / kPackedRows * row_block_elems,
                            .panels = static_cast<const bf16*>(panels),
                            .panel_elems = weight.panel_elems(),
                            .bias = product.bias_from(col),
                            .out = out.as<bf16>() + (begin + row) * out.stride(0) + out_col,
                            .ldo = out.stride(0),
                            .m = std::min(block.rows, num_rows - row),
                            .n = std::min(product.out_from(block.cols), out.dim(1) - out_col),
                            .swiglu_rows = product.swiglu ? chosen_kernels().for_bf16.swiglu_rows : nullptr,
                            .out_past_caches = static_cast<Index>(out.size_bytes()) > kPastCachesBytes});
    });
  }
}

void multiply(const Context& context, const Product& all, Index num_decode_rows) {
  const Index num_fused = multiply_codes(context, all, std::max<Index>(0, num_decode_rows));
  const Product product = all.rows(num_fused, all.x.dim(0) - num_fused);
  if (product.x.dim(0) == 0) return;
  const MatrixUnit& unit = chosen_kernels().matrix_unit;
  if (product.x.dtype == DType::kF32)
    multiply<float>(context, product);
  else if (unit.multiply_packed != nullptr && product.x.dim(0) > kPackedRows)
    multiply_packed(context, product, unit);
  else
    multiply<bf16>(context, product);
}

// Reads column `col` of B, which is row `col` of the table, out of its panel.
template <class T>
void copy_row(const DenseWeight& table, Index col, T* out) {
  constexpr Index kGroup = sizeof(T) == sizeof(float) ? 1 : 2;  // neighbours along k in a panel
  const T* from = table.panels_from<T>(col / kPanelCols * kPanelCols) + col % kPanelCols * kGroup;
  for (Index k = 0; k < table.in_features; ++k) out[k] = from[k / kGroup * kGroup * kPanelCols + k % kGroup];
}

template <class T>
void look_up(const Context& context, const Embed& args) {
  const PackedWeight& any = packed_weight(args.table, args.out.dtype, PanelOrder::kStacked);
  CHECK_MSG(!any.unpacks(), "embed: got a quantised table");
  const auto& table = static_cast<const DenseWeight&>(any);
  const int32_t* ids = args.ids.as<int32_t>();
  context.pool.parallel_for(args.out.dim(0), [&](int64_t row, int) {
    copy_row(table, ids[row], args.out.as<T>() + row * args.out.stride(0));
  });
}

std::unique_ptr<Weight> pack(const Context& context, std::span<const TensorView> parts, DType dtype,
                             PanelOrder order) {
  Index num_out = 0;
  for (const TensorView& part : parts) num_out += part.dim(0);
  auto weight = std::make_unique<DenseWeight>(dtype, order, num_out, parts[0].dim(1));
  if (dtype == DType::kF32)
    pack_all<float>(context, parts, *weight);
  else
    pack_all<bf16>(context, parts, *weight);
  return weight;
}

}  // namespace

std::string isa_name() {
  const GemmKernels& kernels = chosen_kernels();
  if (kernels.name == kernels.vector_isa) return std::string(kernels.name);
  return fmt::format("{} {}", kernels.vector_isa, kernels.name);
}

std::unique_ptr<Weight> pack(const Context& context, std::span<const TensorView> parts, DType dtype) {
  return pack(context, parts, dtype, PanelOrder::kStacked);
}

std::unique_ptr<Weight> pack_gate_up(const Context& context, const TensorView& gate, const TensorView& up,
                                     DType dtype) {
  const TensorView parts[] = {gate, up};
  return pack(context, parts, dtype, PanelOrder::kInTurns);
}

void matmul(const Context& context, const Matmul& args) {
  multiply(context,
           {.x = args.x,
            .weight = packed_weight(args.weight, args.x.dtype, PanelOrder::kStacked),
            .bias = args.bias.empty() ? nullptr : args.bias.as<float>(),
            .out = args.out,
            .swiglu = false},
           args.num_decode_rows);
}

void matmul_swiglu(const Context& context, const MatmulSwiGlu& args) {
  multiply(context,
           {.x = args.x,
            .weight = packed_weight(args.weight, args.x.dtype, PanelOrder::kInTurns),
            .bias = nullptr,
            .out = args.out,
            .swiglu = true},
           args.num_decode_rows);
}

void embed(const Context& context, const Embed& args) {
  if (args.out.dtype == DType::kF32)
    look_up<float>(context, args);
  else
    look_up<bf16>(context, args);
}

}  // namespace longspan::ops::cpu
