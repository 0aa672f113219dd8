// A trial of a library's product against the own kernel: how long it takes, and whether its rows may be used.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "ops/device/runtime.h"
#include "ops/ops.h"

namespace longspan::ops::device {

class GemmTrial final {
 public:
  // Puts one product of num_rows rows to the device; false where it cannot.
  using Product = std::function<bool(const Matmul& block)>;

  // `like`: weight, dtype and strides of the products to come. Rows are drawn: eight different ones, over and
  // over. What the own kernel makes of them is the measure.
  GemmTrial(Device& device, const Matmul& like, Index num_rows);

  double own_seconds();
  // Infinite where it cannot. Ends early where it takes several times `limit`.
  double seconds_of(const Product& product, double limit);
  // Empty when its rows are those of the own kernel but for rounding, the same bits wherever in the block a
  // row stands, the same bits again, and in blocks of other_counts rows, whose outputs may lie further apart;
  // else which of these fails.
  std::string fault_of(const Product& product, std::initializer_list<Index> other_counts = {});

 private:
  Matmul block(const Buffer& out) const;
  std::string away_from_own(const Buffer& got) const;

  Device& device_;
  Matmul like_;
  Index num_rows_;
  Index num_columns_;  // N
  Buffer x_, own_out_, out_;
};

// T [rows, columns] of uniform values in -1 .. 1, the same every time, in device memory.
Buffer drawn_rows(Device& device, DType dtype, Index rows, Index columns);

}  // namespace longspan::ops::device
