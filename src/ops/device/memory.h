// How kernels touch memory. On a card these are plain accesses; the emulator checks each of them: bounds and
// alignment of global memory, bounds, races and unwritten words of shared memory. No kernel holds a raw
// pointer.
#pragma once

#include "core/tensor.h"
#include "ops/device/types.h"

namespace longspan::ops::device {

// Device memory of elements T. Made on the host from a device pointer.
template <class T>
struct Global {
  T* data = nullptr;

  DEVICE_FN T get(int64_t i) const { return load_global<T>(data + i); }
  DEVICE_FN void put(int64_t i, T value) const { store_global<T>(data + i, value); }
  DEVICE_FN float at(int64_t i) const { return to_float(get(i)); }
  DEVICE_FN void set(int64_t i, float value) const { put(i, from_float<T>(value)); }
  // N elements from i; the address is a multiple of their size.
  template <int N>
  DEVICE_FN Vec<T, N> load(int64_t i) const {
    return load_global<Vec<T, N>>(data + i);
  }
  // The same, of data that nobody reads again soon.
  template <int N>
  DEVICE_FN Vec<T, N> stream(int64_t i) const {
    return load_stream<Vec<T, N>>(data + i);
  }
  template <int N>
  DEVICE_FN void store(int64_t i, Vec<T, N> value) const {
    store_global<Vec<T, N>>(data + i, value);
  }
  DEVICE_FN void prefetch(int64_t i) const { prefetch_global(data + i); }
  DEVICE_FN Global<T> operator+(int64_t offset) const { return {data + offset}; }
  HOST_DEVICE_FN bool empty() const { return data == nullptr; }
};

// Shared memory of elements T.
template <class T>
struct Shared {
  static_assert(sizeof(T) >= 2);  // the emulator tells accesses apart by two bytes
  T* data = nullptr;

  DEVICE_FN T get(int i) const { return load_shared<T>(data + i); }
  DEVICE_FN void put(int i, T value) const { store_shared<T>(data + i, value); }
  DEVICE_FN float at(int i) const { return to_float(get(i)); }
  DEVICE_FN void set(int i, float value) const { put(i, from_float<T>(value)); }
  template <int N>
  DEVICE_FN Vec<T, N> load(int i) const {
    return load_shared<Vec<T, N>>(data + i);
  }
  template <int N>
  DEVICE_FN void store(int i, Vec<T, N> value) const {
    store_shared<Vec<T, N>>(data + i, value);
  }
  DEVICE_FN Shared<T> operator+(int offset) const { return {data + offset}; }
};

// Hands out the block's shared memory front to back; every thread takes the same pieces in the same order.
class SharedPool {
 public:
  DEVICE_FN SharedPool() : next_(shared_memory()) {}
  template <class T>
  DEVICE_FN Shared<T> take(int count) {
    T* const data = reinterpret_cast<T*>(next_);
    next_ += (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
    check_shared(static_cast<size_t>(next_ - shared_memory()));
    return {data};
  }

 private:
  char* next_;
};
// What take<T>(count) uses.
template <class T>
constexpr size_t shared_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
}

// Views of tensors, innermost stride 1.
template <class T>
struct Matrix {
  Global<T> data;
  int64_t stride = 0;  // elements a row

  DEVICE_FN Global<T> row(int64_t i) const { return data + i * stride; }
  HOST_DEVICE_FN bool empty() const { return data.empty(); }
};
template <class T>
struct Heads {
  Global<T> data;
  int64_t stride = 0;       // elements a token
  int64_t head_stride = 0;  // elements a head

  DEVICE_FN Global<T> row(int64_t i, int64_t head) const { return data + i * stride + head * head_stride; }
  HOST_DEVICE_FN bool empty() const { return data.empty(); }
};

template <class T>
Global<T> global(const TensorView& view) {
  return {static_cast<T*>(view.data)};
}
template <class T>
Matrix<T> matrix(const TensorView& view) {
  return {global<T>(view), view.stride(0)};
}
template <class T>
Heads<T> heads(const TensorView& view) {
  return {global<T>(view), view.stride(0), view.stride(1)};
}

// Whether every row of the view may be read in 16-byte words: base, strides and width are multiples of them.
inline bool takes_words(const TensorView& view) {
  if (view.empty()) return true;
  const size_t size = dtype_size(view.dtype);
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0) return false;
  for (int axis = 0; axis + 1 < view.shape.rank; ++axis)
    if (static_cast<size_t>(view.stride(axis)) * size % 16 != 0) return false;
  return static_cast<size_t>(view.dim(view.shape.rank - 1)) * size % 16 == 0;
}

}  // namespace longspan::ops::device
