// Raw rate of the AMX bf16 product: four independent tiles, nothing loaded.
#include <algorithm>

#include "measure/peaks.h"
#include "ops/cpu/gemm_kernels.h"

namespace longspan::measure {

double amx_peak_gflops(double seconds) {
  const ops::cpu::GemmFn<bf16> gemm = ops::cpu::amx().gemm;
  if (gemm == nullptr) return 0;
  // A 32-row product configures the tiles the way the loop below uses them.
  Buffer memory(64 << 10);
  auto* values = static_cast<bf16*>(memory.data());
  gemm(values, 32, values, static_cast<float*>(memory.data()) + 4096, 32, 32, 32, 32,
       ops::cpu::Accumulate::kNo);
  constexpr int kRounds = 100000;
  constexpr double kFlops = 4.0 * kRounds * 16 * 16 * 32 * 2;
  double best = 0;
  for (const double end = now_seconds() + seconds; now_seconds() < end;) {
    const double start = now_seconds();
    for (int i = 0; i < kRounds; ++i)
      asm volatile(
          "tdpbf16ps %tmm6, %tmm4, %tmm0\n\t"
          "tdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
          "tdpbf16ps %tmm6, %tmm5, %tmm2\n\t"
          "tdpbf16ps %tmm7, %tmm5, %tmm3");
    best = std::max(best, kFlops / (now_seconds() - start) / 1e9);
  }
  return best;
}

}  // namespace longspan::measure
