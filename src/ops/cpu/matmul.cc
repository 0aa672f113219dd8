// Linear layers: weights packed once into panels, products of any number of rows through the tile product.
// Every element is one call chain gemm -> round_rows over the whole of K, so neither the number of rows nor
// the cut into tasks can change a bit of it.
#include <algorithm>
#include <vector>

#include "ops/cpu/block_size.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/tile_gemm.h"

namespace longspan::ops::cpu {
namespace {

// The rows of all parts as columns of B: panels of 16, see tile_gemm.h. Read-only once packed.
class PackedWeight final : public Weight {
 public:
  PackedWeight(DType dtype, Index num_out, Index num_in)
      : dtype_(dtype),
        panel_elems_(dtype == DType::kF32 ? packed_elements<float>(num_in, kPanelCols)
                                          : packed_elements<bf16>(num_in, kPanelCols)),
        memory_(static_cast<size_t>((num_out + kPanelCols - 1) / kPanelCols * panel_elems_) *
                dtype_size(dtype)) {
    out_features = num_out;
    in_features = num_in;
  }

  size_t size_bytes() const override { return memory_.size_bytes(); }
  DType dtype() const { return dtype_; }
  Index panel_elems() const { return panel_elems_; }  // from one panel to the next
  Index column_bytes() const { return panel_elems_ / kPanelCols * static_cast<Index>(dtype_size(dtype_)); }
  Index num_panels() const { return (out_features + kPanelCols - 1) / kPanelCols; }

  // First panel that holds column `col` (a multiple of kPanelCols).
  template <class T>
  T* panels_from(Index col) const {
    return static_cast<T*>(memory_.data()) + col / kPanelCols * panel_elems_;
  }

 private:
  DType dtype_;
  Index panel_elems_;
  Buffer memory_;
};

const PackedWeight& packed_weight(const Weight* weight, DType dtype) {
  const auto& packed = static_cast<const PackedWeight&>(*weight);
  CHECK_MSG(packed.dtype() == dtype, "weight packed for {}, rows are {}", dtype_name(packed.dtype()),
            dtype_name(dtype));
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
void pack_panel(std::span<const TensorView> parts, Index panel, const PackedWeight& weight, T* rows) {
  const Index k = weight.in_features;
  const Index first = panel * kPanelCols;
  const Index count = std::min(kPanelCols, weight.out_features - first);
  for (Index i = 0; i < count; ++i) {
    const PartRow from = find_row(parts, first + i);
    const auto* data = static_cast<const std::byte*>(from.part->data) +
                       from.row * from.part->stride(0) * static_cast<Index>(dtype_size(from.part->dtype));
    dispatch_dtype(from.part->dtype, [&]<class From>() { convert<From>(data, k, rows + i * k); });
  }
  pack_b_transposed(rows, k, k, count, weight.panels_from<T>(first));
}

template <class T>
void pack_all(const Context& context, std::span<const TensorView> parts, const PackedWeight& weight) {
  context.scratch.reserve(static_cast<size_t>(kPanelCols * weight.in_features) * sizeof(T));
  context.pool.parallel_for(weight.num_panels(), [&](int64_t panel, int thread) {
    pack_panel(parts, panel, weight, static_cast<T*>(context.scratch.of_thread(thread)));
  });
}

template <class T>
void multiply(const Context& context, const Matmul& args) {
  const PackedWeight& weight = packed_weight(args.weight, args.x.dtype);
  const Index num_rows = args.x.dim(0);
  const BlockSize block =
      block_size(num_rows, weight.out_features, weight.column_bytes(), context.pool.num_threads());
  const Index row_tasks = num_blocks(num_rows, block.rows);
  const Index col_tasks = num_blocks(weight.out_features, block.cols);
  context.scratch.reserve(static_cast<size_t>(kRowsAtOnce * block.cols) * sizeof(float));

  // Row blocks of one slice of columns follow each other: its panels are in the cache by then.
  context.pool.parallel_for(row_tasks * col_tasks, [&](int64_t task, int thread) {
    auto* sums = static_cast<float*>(context.scratch.of_thread(thread));  // [kRowsAtOnce, block.cols]
    const Index col = task / row_tasks * block.cols;
    const Index first = task % row_tasks * block.rows;
    const Index cols = std::min(block.cols, weight.out_features - col);
    const Index end = std::min(first + block.rows, num_rows);
    const float* bias = args.bias.empty() ? nullptr : args.bias.as<float>() + col;
    for (Index row = first; row < end; row += kRowsAtOnce) {
      const Index rows = std::min(kRowsAtOnce, end - row);
      gemm(args.x.as<T>() + row * args.x.stride(0), args.x.stride(0), weight.panels_from<T>(col), sums,
           block.cols, rows, cols, weight.in_features, Accumulate::kNo);
      round_rows(sums, block.cols, bias, args.out.as<T>() + row * args.out.stride(0) + col,
                 args.out.stride(0), rows, cols);
    }
  });
}

// The same over rows packed for the matrix unit, a chunk of them at a time.
void multiply_packed(const Context& context, const Matmul& args, const MatrixUnit& unit) {
  const PackedWeight& weight = packed_weight(args.weight, args.x.dtype);
  const Index row_block_elems = 2 * weight.panel_elems();  // kPackedRows rows
  const Index chunk_rows = std::min(args.x.dim(0), kPackedChunkRows);
  context.scratch.reserve(static_cast<size_t>(num_blocks(chunk_rows, kPackedRows) * row_block_elems) *
                          sizeof(bf16));
  auto* packed = static_cast<bf16*>(context.scratch.of_thread(0));  // all threads read it

  for (Index first = 0; first < args.x.dim(0); first += chunk_rows) {
    const Index num_rows = std::min(chunk_rows, args.x.dim(0) - first);
    const TensorView x = args.x.rows(first, num_rows);
    const TensorView out = args.out.rows(first, num_rows);
    context.pool.parallel_for(num_blocks(num_rows, kPackedRows), [&](int64_t block, int) {
      const Index row = block * kPackedRows;
      unit.pack_rows(x.as<bf16>() + row * x.stride(0), x.stride(0), std::min(kPackedRows, num_rows - row),
                     weight.in_features, packed + block * row_block_elems);
    });
    const BlockSize block =
        packed_block_size(num_rows, weight.out_features, weight.column_bytes(), context.pool.num_threads());
    const Index row_tasks = num_blocks(num_rows, block.rows);
    const Index col_tasks = num_blocks(weight.out_features, block.cols);
    context.pool.parallel_for(row_tasks * col_tasks, [&](int64_t task, int) {
      const Index col = task / row_tasks * block.cols;
      const Index row = task % row_tasks * block.rows;
      unit.multiply_packed({.rows = packed + row / kPackedRows * row_block_elems,
                            .panels = weight.panels_from<bf16>(col),
                            .panel_elems = weight.panel_elems(),
                            .bias = args.bias.empty() ? nullptr : args.bias.as<float>() + col,
                            .out = out.as<bf16>() + row * out.stride(0) + col,
                            .ldo = out.stride(0),
                            .m = std::min(block.rows, num_rows - row),
                            .n = std::min(block.cols, weight.out_features - col),
                            .out_past_caches = static_cast<Index>(args.out.size_bytes()) > kPastCachesBytes});
    });
  }
}

// Reads column `col` of B, which is row `col` of the table, out of its panel.
template <class T>
void copy_row(const PackedWeight& table, Index col, T* out) {
  constexpr Index kGroup = sizeof(T) == sizeof(float) ? 1 : 2;  // neighbours along k in a panel
  const T* from = table.panels_from<T>(col / kPanelCols * kPanelCols) + col % kPanelCols * kGroup;
  for (Index k = 0; k < table.in_features; ++k) out[k] = from[k / kGroup * kGroup * kPanelCols + k % kGroup];
}

template <class T>
void look_up(const Context& context, const Embed& args) {
  const PackedWeight& table = packed_weight(args.table, args.out.dtype);
  const int32_t* ids = args.ids.as<int32_t>();
  context.pool.parallel_for(args.out.dim(0), [&](int64_t row, int) {
    copy_row(table, ids[row], args.out.as<T>() + row * args.out.stride(0));
  });
}

}  // namespace

std::string isa_name() {
  const GemmKernels& kernels = chosen_kernels();
  if (kernels.name == kernels.vector_isa) return std::string(kernels.name);
  return fmt::format("{} {}", kernels.vector_isa, kernels.name);
}

std::unique_ptr<Weight> pack(const Context& context, std::span<const TensorView> parts, DType dtype) {
  Index num_out = 0;
  for (const TensorView& part : parts) num_out += part.dim(0);
  auto weight = std::make_unique<PackedWeight>(dtype, num_out, parts[0].dim(1));
  if (dtype == DType::kF32)
    pack_all<float>(context, parts, *weight);
  else
    pack_all<bf16>(context, parts, *weight);
  return weight;
}

void matmul(const Context& context, const Matmul& args) {
  if (args.x.dim(0) == 0) return;
  const MatrixUnit& unit = chosen_kernels().matrix_unit;
  if (args.x.dtype == DType::kF32)
    multiply<float>(context, args);
  else if (unit.multiply_packed != nullptr && args.x.dim(0) > kPackedRows)
    multiply_packed(context, args, unit);
  else
    multiply<bf16>(context, args);
}

void embed(const Context& context, const Embed& args) {
  if (args.out.dtype == DType::kF32)
    look_up<float>(context, args);
  else
    look_up<bf16>(context, args);
}

}  // namespace longspan::ops::cpu
