#include "measure/kernel_memory.h"

namespace longspan::measure {

Buffer random_matrix(DType dtype, Shape shape, uint32_t seed) {
  Buffer matrix(dtype, shape);
  uint32_t state = seed;
  dispatch_dtype(dtype, [&]<class T>() {
    auto* values = matrix.view().as<T>();
    // A congruential generator: hundreds of megabytes are filled.
    for (Index i = 0; i < shape.num_elements(); ++i) {
      state = state * 1664525u + 1013904223u;
      values[i] = T(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
    }
  });
  return matrix;
}

Buffer constant_matrix(DType dtype, Shape shape, float value) {
  Buffer matrix(dtype, shape);
  dispatch_dtype(dtype,
                 [&]<class T>() { std::fill_n(matrix.view().as<T>(), shape.num_elements(), T(value)); });
  return matrix;
}

Buffer random_bytes(DType dtype, Shape shape, uint8_t mask) {
  Buffer buffer(dtype, shape);
  auto* bytes = static_cast<uint8_t*>(buffer.data());
  uint32_t state = 1;
  for (size_t i = 0; i < buffer.view().size_bytes(); ++i) {
    state = state * 1664525u + 1013904223u;
    bytes[i] = static_cast<uint8_t>(state >> 24) & mask;
  }
  return buffer;
}

Buffer scattered_indices(Index count, Index below) {
  Buffer indices(DType::kI32, {count});
  for (Index i = 0; i < count; ++i) indices.view().as<int32_t>()[i] = static_cast<int32_t>(i * 7919 % below);
  return indices;
}

}  // namespace longspan::measure
