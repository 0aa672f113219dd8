#include "core/dtype.h"

#include <array>
#include <cmath>
#include <utility>

namespace longspan {
namespace {

struct DTypeInfo {
  DType dtype;
  size_t size;
  std::string_view name;
  std::string_view short_name;
};

constexpr std::array kInfo = {
    DTypeInfo{DType::kF32, 4, "float32", "fp32"},
    DTypeInfo{DType::kF16, 2, "float16", "fp16"},
    DTypeInfo{DType::kBF16, 2, "bfloat16", "bf16"},
    DTypeInfo{DType::kF8E4M3, 1, "fp8_e4m3", "fp8"},
    DTypeInfo{DType::kF8E5M2, 1, "fp8_e5m2", "f8e5m2"},
    DTypeInfo{DType::kI64, 8, "int64", "i64"},
    DTypeInfo{DType::kI32, 4, "int32", "i32"},
    DTypeInfo{DType::kI16, 2, "int16", "i16"},
    DTypeInfo{DType::kI8, 1, "int8", "i8"},
    DTypeInfo{DType::kU64, 8, "uint64", "u64"},
    DTypeInfo{DType::kU32, 4, "uint32", "u32"},
    DTypeInfo{DType::kU16, 2, "uint16", "u16"},
    DTypeInfo{DType::kU8, 1, "uint8", "u8"},
    DTypeInfo{DType::kBool, 1, "bool", "bool"},
    DTypeInfo{DType::kF64, 8, "float64", "fp64"},
};

const DTypeInfo& info(DType dtype) {
  for (const DTypeInfo& entry : kInfo)
    if (entry.dtype == dtype) return entry;
  CHECK_MSG(false, "unknown dtype {}", static_cast<int>(dtype));
  __builtin_unreachable();
}

}  // namespace

size_t dtype_size(DType dtype) { return info(dtype).size; }
std::string_view dtype_name(DType dtype) { return info(dtype).name; }

DType dtype_from_name(std::string_view name) {
  for (const DTypeInfo& entry : kInfo)
    if (entry.name == name || entry.short_name == name) return entry.dtype;
  if (name == "half") return DType::kF16;
  if (name == "float") return DType::kF32;
  fail(ErrorKind::kInvalid, "unknown dtype '{}': need bfloat16, float16, float32 or fp8_e4m3", name);
}

f16::f16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to infinity
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal or zero: let the float adder round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  } else {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

f16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

f8e4m3::f8e4m3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) {
    bits = static_cast<uint8_t>(sign | 0x7f);
  } else if (magnitude >= 448.0f) {
    bits = static_cast<uint8_t>(sign | 0x7e);
  } else if (magnitude < 0x1p-6f) {  // subnormal: steps of 2^-9, ties to even through nearbyint
    bits = static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f)));
  } else {
    const uint32_t u = std::bit_cast<uint32_t>(magnitude);
    const uint32_t rounded = u + 0x7ffffu + ((u >> 20) & 1u);
    bits = static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
  }
}

f8e4m3::operator float() const {
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  const uint32_t exponent = (bits >> 3) & 15u;
  const uint32_t mantissa = bits & 7u;
  if ((bits & 0x7f) == 0x7f) return std::nanf("");
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9f;
  return sign * std::bit_cast<float>(((exponent + 120) << 23) | (mantissa << 20));
}

}  // namespace longspan
