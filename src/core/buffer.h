// Buffer: owned host memory, 64-byte aligned, on huge pages where large. Movable, frees itself.
#pragma once

#include <cstddef>
#include <memory>

#include "core/tensor.h"

namespace longspan {

class Buffer {
 public:
  Buffer() = default;
  // size_bytes of zeroed memory (pages are touched on first use). Throws kExhausted when there is none.
  explicit Buffer(size_t size_bytes);
  // Room for one dense tensor.
  Buffer(DType dtype, Shape shape);

  void* data() const { return data_.get(); }
  size_t size_bytes() const { return size_bytes_; }
  // The view given at construction (dtype, shape), or bytes.
  TensorView view() const { return TensorView(data(), dtype_, shape_); }

 private:
  struct Unmap {
    size_t size_bytes;
    void operator()(void* pointer) const;
  };

  std::unique_ptr<void, Unmap> data_;
  size_t size_bytes_ = 0;
  DType dtype_ = DType::kU8;
  Shape shape_{0};
};

}  // namespace longspan
