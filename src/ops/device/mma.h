// Matrix units of NVIDIA's kind (sm_80 and up; emulated on waves of 32): fragments of 16 x 8 x 16 products of
// 16-bit floats with fp32 sums, and the loads that make them. Lane l of a wave holds, with g = l / 4 and
// t = l % 4: of A [16, 16] rows g and g + 8, columns 2t, 2t+1, 2t+8, 2t+9; of B [16, 8] the same rows of its
// column g; of C [16, 8] rows g and g + 8, columns 2t and 2t+1.
#pragma once

#include "ops/device/memory.h"

namespace longspan::ops::device {

constexpr int kMmaWave = 32;

struct FragmentA {
  uint32_t v[4];  // (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), two elements each
};
struct FragmentB {
  uint32_t v[2];  // (2t, g) (2t + 8, g)
};
struct FragmentC {
  float v[4];  // (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
};

template <class T>
DEVICE_FN uint32_t pack_pair(float low, float high) {
  return static_cast<uint32_t>(from_float<T>(low).bits) | static_cast<uint32_t>(from_float<T>(high).bits)
                                                              << 16;
}
template <>
DEVICE_FN uint32_t pack_pair<bf16_t>(float low, float high) {
  return floats_to_bfloats(low, high);
}

// Two codes times scale as two T, the first in the low half.
template <class T>
DEVICE_FN uint32_t expand_pair(uint32_t codes, float scale) {
  const uint32_t halves = e4m3_pair_to_halves(static_cast<uint16_t>(codes));
  return pack_pair<T>(half_to_float(static_cast<uint16_t>(halves)) * scale,
                      half_to_float(static_cast<uint16_t>(halves >> 16)) * scale);
}

// The same of scale 1: exact, and of f16 what the conversion gives.
template <class T>
DEVICE_FN uint32_t unscaled_pair(uint32_t codes) {
  return expand_pair<T>(codes, 1.0f);
}
template <>
DEVICE_FN uint32_t unscaled_pair<f16_t>(uint32_t codes) {
  return e4m3_pair_to_halves(static_cast<uint16_t>(codes));
}

// c += a b
template <class T>
DEVICE_FN void multiply_add(FragmentC& c, const FragmentA& a, const FragmentB& b);
template <>
DEVICE_FN void multiply_add<bf16_t>(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  mma_bf16(c.v, a.v, b.v);
}
template <>
DEVICE_FN void multiply_add<f16_t>(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  mma_f16(c.v, a.v, b.v);
}

// The 16 x 16 tile of a row-major matrix whose first element is `tile`, rows `pitch` elements apart, as A.
template <class T>
DEVICE_FN FragmentA load_a(Shared<T> tile, int pitch) {
  const int lane = thread_idx() % kMmaWave;
  FragmentA a;
  load_matrices(a.v, tile.data + (lane % 16) * pitch + lane / 16 * 8);
  return a;
}
// 16 rows (columns of B) of 16 elements (rows of B), as two B side by side: a product with the transpose.
template <class T>
DEVICE_FN void load_b_rows(Shared<T> tile, int pitch, FragmentB& first, FragmentB& second) {
  const int lane = thread_idx() % kMmaWave;
  uint32_t v[4];
  load_matrices(v, tile.data + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8);
  first = {{v[0], v[1]}};
  second = {{v[2], v[3]}};
}
// 16 rows of 16 elements as they are, as two B side by side.
template <class T>
DEVICE_FN void load_b(Shared<T> tile, int pitch, FragmentB& first, FragmentB& second) {
  const int lane = thread_idx() % kMmaWave;
  uint32_t v[4];
  load_matrices_transposed(v, tile.data + (lane % 16) * pitch + lane / 16 * 8);
  first = {{v[0], v[1]}};
  second = {{v[2], v[3]}};
}

}  // namespace longspan::ops::device
