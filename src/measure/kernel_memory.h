// Tensors to measure on: values that are no zeros, and rings of copies that no cache holds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/memory.h"

namespace longspan::measure {

// bf16 or f32 values in -1 .. 1.
Buffer random_matrix(DType dtype, Shape shape, uint32_t seed = 1);
Buffer constant_matrix(DType dtype, Shape shape, float value);
Buffer random_bytes(DType dtype, Shape shape, uint8_t mask);
Buffer scattered_indices(Index count, Index below);  // i32 [count], each in 0 .. below - 1

// Copies of one tensor, handed out in turn.
class Ring final {
 public:
  Ring(Memory& memory, Index num_copies, DType dtype, Shape shape)
      : num_copies_(std::max<Index>(1, num_copies)), shape_(shape) {
    Shape all = shape;
    all.dims[0] *= num_copies_;
    buffer_ = moved_to(memory, random_matrix(dtype, all));
  }
  TensorView at(Index i) const { return buffer_.view().rows(i % num_copies_ * shape_[0], shape_[0]); }
  Index num_copies() const { return num_copies_; }

 private:
  Index num_copies_;
  Shape shape_;
  Buffer buffer_;
};

}  // namespace longspan::measure
