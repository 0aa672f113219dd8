// TensorView: a borrowed, typed, shaped piece of memory. Never owns; the owner is a Buffer.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace longspan {

using Index = int64_t;

// Up to four dimensions, outermost first.
struct Shape {
  static constexpr int kMaxRank = 4;

  std::array<Index, kMaxRank> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<Index> list);

  Index operator[](int axis) const { return dims[static_cast<size_t>(axis)]; }
  Index num_elements() const;
  bool operator==(const Shape& other) const;
};

std::string to_string(const Shape& shape);  // "[3, 64]"

// Strides count elements. The innermost stride is always 1.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  std::array<Index, Shape::kMaxRank> strides{};

  TensorView() = default;
  // A dense row-major view.
  TensorView(void* data, DType dtype, Shape shape);

  bool empty() const { return data == nullptr; }
  Index dim(int axis) const { return shape[axis]; }
  Index stride(int axis) const { return strides[static_cast<size_t>(axis)]; }
  Index num_elements() const { return shape.num_elements(); }
  size_t size_bytes() const {
    return static_cast<size_t>(num_elements()) * dtype_size(dtype);
  }  // of a dense view
  bool is_dense() const;

  // Typed pointer; the dtype must match.
  template <class T>
  T* as() const {
    CHECK_MSG(dtype == dtype_of<std::remove_const_t<T>>::value, "view holds {}, asked for {}",
              dtype_name(dtype), dtype_name(dtype_of<std::remove_const_t<T>>::value));
    return static_cast<T*>(data);
  }

  // Rows begin .. begin + count of axis 0.
  TensorView rows(Index begin, Index count) const;
  // Columns begin .. begin + count of the innermost axis.
  TensorView cols(Index begin, Index count) const;
  // The innermost axis cut into [outer, inner]: [n, a*b] -> [n, a, b].
  TensorView split_last(Index outer, Index inner) const;
};

std::string to_string(const TensorView& view);  // "bfloat16 [3, 64]"

}  // namespace longspan
