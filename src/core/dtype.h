// Element types, and the two 16-bit floats with their conversions (round to nearest, ties to even).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace longspan {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF64
};

size_t dtype_size(DType dtype);            // bytes an element
std::string_view dtype_name(DType dtype);  // "bfloat16", "float32", ...: the names of config.json and --dtype
DType dtype_from_name(
    std::string_view name);  // the way back, short forms ("bf16", "fp32") too; throws kInvalid

// bfloat16 storage. Arithmetic happens in float.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  // Round to nearest even; NaN stays a (quiet) NaN.
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<uint16_t>((u >> 16) | 0x40u)
                  : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16 storage.
struct f16 {
  uint16_t bits = 0;

  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

// e4m3fn storage: no infinity, 0x7f and 0xff are NaN, largest value 448.
struct f8e4m3 {
  uint8_t bits = 0;

  f8e4m3() = default;
  explicit f8e4m3(float value);  // saturates to +-448, NaN stays NaN
  explicit operator float() const;
};

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct dtype_of<f8e4m3> {
  static constexpr DType value = DType::kF8E4M3;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct dtype_of<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct dtype_of<uint32_t> {
  static constexpr DType value = DType::kU32;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct dtype_of<bool> {
  static constexpr DType value = DType::kBool;
};

// Calls fn.template operator()<T>() with the activation type behind dtype: float, bf16 or f16.
template <class Fn>
decltype(auto) dispatch_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn.template operator()<float>();
    case DType::kBF16:
      return fn.template operator()<bf16>();
    case DType::kF16:
      return fn.template operator()<f16>();
    default:
      break;
  }
  CHECK_MSG(false, "no activation type {}", dtype_name(dtype));
  __builtin_unreachable();
}

}  // namespace longspan
