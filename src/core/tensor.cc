#include "core/tensor.h"

namespace longspan {

Shape::Shape(std::initializer_list<Index> list) {
  CHECK_MSG(list.size() <= kMaxRank, "rank {}", list.size());
  for (Index dim : list) dims[static_cast<size_t>(rank++)] = dim;
}

Index Shape::num_elements() const {
  Index count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= (*this)[axis];
  return count;
}

bool Shape::operator==(const Shape& other) const {
  if (rank != other.rank) return false;
  for (int axis = 0; axis < rank; ++axis)
    if ((*this)[axis] != other[axis]) return false;
  return true;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank; ++axis) text += fmt::format("{}{}", axis ? ", " : "", shape[axis]);
  return text + "]";
}

TensorView::TensorView(void* data_, DType dtype_, Shape shape_) : data(data_), dtype(dtype_), shape(shape_) {
  Index stride = 1;
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= shape[axis];
  }
}

bool TensorView::is_dense() const {
  Index expected = 1;
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && stride(axis) != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

TensorView TensorView::rows(Index begin, Index count) const {
  CHECK_MSG(shape.rank > 0 && begin >= 0 && count >= 0 && begin + count <= dim(0), "rows {}+{} of {}", begin,
            count, to_string(shape));
  TensorView view = *this;
  view.data = static_cast<char*>(data) + begin * stride(0) * static_cast<Index>(dtype_size(dtype));
  view.shape.dims[0] = count;
  return view;
}

TensorView TensorView::cols(Index begin, Index count) const {
  const int last = shape.rank - 1;
  CHECK_MSG(last >= 0 && begin >= 0 && count >= 0 && begin + count <= dim(last), "cols {}+{} of {}", begin,
            count, to_string(shape));
  TensorView view = *this;
  view.data = static_cast<char*>(data) + begin * static_cast<Index>(dtype_size(dtype));
  view.shape.dims[static_cast<size_t>(last)] = count;
  return view;
}

TensorView TensorView::split_last(Index outer, Index inner) const {
  const int last = shape.rank - 1;
  CHECK_MSG(last >= 0 && shape.rank < Shape::kMaxRank && dim(last) == outer * inner, "split {} into {} x {}",
            to_string(shape), outer, inner);
  TensorView view = *this;
  view.shape.rank = shape.rank + 1;
  view.shape.dims[static_cast<size_t>(last)] = outer;
  view.shape.dims[static_cast<size_t>(last) + 1] = inner;
  view.strides[static_cast<size_t>(last)] = inner;
  view.strides[static_cast<size_t>(last) + 1] = 1;
  return view;
}

std::string to_string(const TensorView& view) {
  return fmt::format("{} {}", dtype_name(view.dtype), to_string(view.shape));
}

}  // namespace longspan
