// Element types of device memory: storage only, arithmetic happens in float. Same bits as core's.
#pragma once

#include "core/dtype.h"
#include "ops/device/vendor.h"

namespace longspan::ops::device {

struct bf16_t {
  uint16_t bits;
};
struct f16_t {
  uint16_t bits;
};
// e4m3fn: no infinity, 0x7f and 0xff are NaN, largest value 448.
struct e4m3_t {
  uint8_t bits;
};

DEVICE_FN float to_float(float value) { return value; }
DEVICE_FN float to_float(bf16_t value) { return bfloat_to_float(value.bits); }
DEVICE_FN float to_float(f16_t value) { return half_to_float(value.bits); }
// By way of f16: the exponent field moves over with a bias 8 too small, hence 2^8. Exact, subnormals too.
DEVICE_FN float to_float(e4m3_t value) {
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7fu) return half_to_float(0x7e00u);
  const uint32_t sign = (value.bits & 0x80u) << 8;
  return half_to_float(static_cast<uint16_t>(sign | (magnitude << 7))) * 256.0f;
}

// Four codes of one word, none a NaN, over kE4M3Scale: exact. Without an instruction for it two at a
// time: between f16's sign and exponent, whose bias is 8 larger.
constexpr float kE4M3Scale = kConvertsE4M3 ? 1.0f : 256.0f;
DEVICE_FN void unpack_e4m3(uint32_t word, float (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kConvertsE4M3) {
      const uint32_t pair = e4m3_pair_to_halves(static_cast<uint16_t>(word >> (16 * i)));
      out[2 * i] = half_to_float(static_cast<uint16_t>(pair));
      out[2 * i + 1] = half_to_float(static_cast<uint16_t>(pair >> 16));
    } else {  // codes i and i + 2, each at the top of a half
      const uint32_t tops = i == 0 ? word << 8 : word;
      const uint32_t pair = (tops & 0x80008000u) | ((tops >> 1) & 0x3f803f80u);
      out[i] = half_to_float(static_cast<uint16_t>(pair));
      out[i + 2] = half_to_float(static_cast<uint16_t>(pair >> 16));
    }
  }
}

template <class T>
DEVICE_FN T from_float(float value);
template <>
DEVICE_FN float from_float<float>(float value) {
  return value;
}
template <>
DEVICE_FN bf16_t from_float<bf16_t>(float value) {
  return {float_to_bfloat(value)};
}
template <>
DEVICE_FN f16_t from_float<f16_t>(float value) {
  return {float_to_half(value)};
}
// Saturates to +-448. Values below the smallest normal (2^-6) are multiples of 2^-9.
template <>
DEVICE_FN e4m3_t from_float<e4m3_t>(float value) {
  const float size = fabsf(value);
  const uint8_t sign = copysignf(1.0f, value) < 0.0f ? 0x80u : 0x00u;
  if (!(size == size)) return {0x7fu};
  if (size >= 448.0f) return {static_cast<uint8_t>(sign | 0x7eu)};
  if (size < 0.015625f) return {static_cast<uint8_t>(sign | static_cast<uint8_t>(rintf(size * 512.0f)))};
  int exponent = 0;
  const float fraction = frexpf(size, &exponent);               // [0.5, 1)
  const int steps = static_cast<int>(rintf(fraction * 16.0f));  // 8 .. 16
  const int code = ((exponent + 6) << 3) + steps - 8;           // a carry moves into the exponent
  return {static_cast<uint8_t>(sign | static_cast<uint8_t>(code < 0x7e ? code : 0x7e))};
}

// The "rnd" of the formulas: to T and back.
template <class T>
DEVICE_FN float rounded(float value) {
  return to_float(from_float<T>(value));
}

// N elements that move as one word of N * sizeof(T) bytes.
template <class T, int N>
struct alignas(N * sizeof(T)) Vec {
  T v[N];
};
// As many elements as 16 bytes hold.
template <class T>
constexpr int kVec = 16 / static_cast<int>(sizeof(T));

// Calls fn.template operator()<T>() with the storage type of an activation dtype.
template <class Fn>
void dispatch_element(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn.template operator()<float>();
    case DType::kBF16:
      return fn.template operator()<bf16_t>();
    case DType::kF16:
      return fn.template operator()<f16_t>();
    default:
      CHECK_MSG(false, "no activation type {}", dtype_name(dtype));
  }
}

}  // namespace longspan::ops::device
