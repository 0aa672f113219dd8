// What architectures differ in, as far as a plan asks: which 16-bit type of activations is fast on which.
// Every device computes in float32, bfloat16 and float16 (types.h), fast or not.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/dtype.h"

namespace longspan::ops::device {

struct ArchDTypes {
  std::string_view prefix;    // of DeviceInfo::arch or full_arch: "gfx906", "sm_"
  std::optional<DType> slow;  // of bfloat16 and float16
  std::string_view because;   // "gfx906 " before it makes the sentence
};

// The first whose prefix fits holds. Matrix shapes of gfx926 are those of DTK's manual, seen on no card.
inline constexpr ArchDTypes kArchDTypes[] = {
    {"gfx900", DType::kBF16, "has no bfloat16 instructions; float16 has packed ones"},
    {"gfx906", DType::kBF16, "has no bfloat16 instructions; float16 has packed ones"},
    {"gfx926", DType::kBF16, "has no bfloat16 matrix instructions; float16 has packed ones"},
    {"gfx10", DType::kBF16, "has no bfloat16 instructions; float16 has packed ones"},
    {"sm_", DType::kF16, "takes the delta rule to its matrix units in bfloat16 alone"},
    {"", std::nullopt, ""},
};

// arch: "gfx936:sramecc+:xnack-" is gfx936. Empty: of no card, where nothing is known to be slow.
constexpr const ArchDTypes& arch_dtypes(std::string_view arch) {
  const ArchDTypes* entry = kArchDTypes;
  while (!arch.starts_with(entry->prefix)) ++entry;
  return *entry;
}

// "gfx906 has no bfloat16 instructions; float16 has packed ones"; empty where `dtype` is not slow there.
inline std::string why_slow(DType dtype, std::string_view arch) {
  const ArchDTypes& entry = arch_dtypes(arch);
  if (entry.slow != dtype) return "";
  return std::string(arch.substr(0, arch.find(':'))) + " " + std::string(entry.because);
}

}  // namespace longspan::ops::device
