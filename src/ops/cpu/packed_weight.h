// What every linear layer's weight offers the products: columns in panels (tile_gemm.h), lying there or made
// when asked for. And one product over them.
#pragma once

#include "ops/cpu/block_size.h"
#include "ops/cpu/tile_gemm.h"
#include "ops/ops.h"

namespace longspan::ops::cpu {

// How rows of the parts become panels.
enum class PanelOrder : uint8_t {
  kStacked,  // the parts' rows one after the other
  kInTurns   // of two equal parts: a panel of the first, the same panel of the second
};

// The rows of all parts as columns of B. Read-only once packed.
class PackedWeight : public Weight {
 public:
  DType dtype() const { return dtype_; }
  PanelOrder order() const { return order_; }
  Index panel_elems() const { return panel_elems_; }  // from one panel to the next
  Index column_bytes() const { return panel_elems_ / kPanelCols * static_cast<Index>(dtype_size(dtype_)); }
  Index num_panels() const { return num_panels_; }

  // Whether panels() needs room: [cols / 16][panel_elems], 64-byte aligned.
  virtual bool unpacks() const { return false; }
  // The panels of `cols` columns from `col` on, a multiple of kPanelCols. Thread-safe.
  virtual const void* panels(Index col, Index cols, void* room) const = 0;

 protected:
  PackedWeight(DType dtype, PanelOrder order, Index num_out, Index num_in)
      : dtype_(dtype),
        order_(order),
        num_panels_(order == PanelOrder::kInTurns ? 2 * num_blocks(num_out / 2, kPanelCols)
                                                  : num_blocks(num_out, kPanelCols)),
        panel_elems_(dtype == DType::kF32 ? packed_elements<float>(num_in, kPanelCols)
                                          : packed_elements<bf16>(num_in, kPanelCols)) {
    out_features = num_out;
    in_features = num_in;
  }

 private:
  DType dtype_;
  PanelOrder order_;
  Index num_panels_;
  Index panel_elems_;
};

// One product and how its sums leave: rounded, or through SwiGLU.
struct Product {
  TensorView x;  // [num_rows, K]
  const PackedWeight& weight;
  const float* bias;  // [N] or nullptr
  TensorView out;     // [num_rows, N] or, with swiglu, [num_rows, N / 2]
  bool swiglu;

  Index num_cols() const { return swiglu ? weight.num_panels() * kPanelCols : weight.out_features; }
  const float* bias_from(Index col) const { return bias != nullptr ? bias + col : nullptr; }
  Index out_from(Index col) const { return swiglu ? col / 2 : col; }  // column of out; col begins a block
  Product rows(Index begin, Index count) const {
    return {x.rows(begin, count), weight, bias, out.rows(begin, count), swiglu};
  }
};

}  // namespace longspan::ops::cpu
