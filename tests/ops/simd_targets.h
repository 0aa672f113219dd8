// Runs a test once for each SIMD target of this processor, not only for the best one.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <cstdint>

namespace longspan::ops {

template <class Fn>
void for_each_simd_target(const Fn& fn) {
#if HWY_ARCH_X86
  constexpr int64_t kTargets[] = {HWY_SSE4, HWY_AVX2, HWY_AVX3};
#else
  constexpr int64_t kTargets[] = {HWY_STATIC_TARGET};
#endif
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t target : kTargets) {
    if ((target & supported) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    fn();
  }
  hwy::GetChosenTarget().Update(supported);
}

}  // namespace longspan::ops
