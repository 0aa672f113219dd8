#include "core/arena.h"

namespace longspan {

size_t Arena::bytes_for(DType dtype, Shape shape) {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * dtype_size(dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

TensorView Arena::take(DType dtype, Shape shape) {
  const size_t bytes = bytes_for(dtype, shape);
  CHECK_MSG(used_ + bytes <= buffer_.size_bytes(), "arena of {} bytes: {} used, {} asked for",
            buffer_.size_bytes(), used_, bytes);
  TensorView view(static_cast<char*>(buffer_.data()) + used_, dtype, shape);
  used_ += bytes;
  return view;
}

}  // namespace longspan
