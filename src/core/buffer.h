// Buffer: owned memory, movable, frees itself. The host's by default: zeroed, 64-byte aligned, on huge pages
// where large.
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
  // Takes over memory of another kind, a device's: release(data, size_bytes) frees it.
  using Release = void (*)(void* data, size_t size_bytes);
  Buffer(void* data, DType dtype, Shape shape, Release release);

  void* data() const { return data_.get(); }
  size_t size_bytes() const { return size_bytes_; }
  // The view given at construction (dtype, shape), or bytes.
  TensorView view() const { return TensorView(data(), dtype_, shape_); }

 private:
  struct Free {
    size_t size_bytes;
    Release release;
    void operator()(void* pointer) const { release(pointer, size_bytes); }
  };

  std::unique_ptr<void, Free> data_;
  size_t size_bytes_ = 0;
  DType dtype_ = DType::kU8;
  Shape shape_{0};
};

}  // namespace longspan
