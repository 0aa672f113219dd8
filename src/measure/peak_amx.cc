// Raw rate of the AMX bf16 product: four independent tiles, nothing loaded.
#include "measure/peaks.h"
#include "ops/cpu/gemm_kernels.h"

namespace longspan::measure {

double amx_gflops(ThreadPool& pool) {
  const ops::cpu::GemmFn<bf16> gemm = ops::cpu::amx().gemm;
  if (gemm == nullptr) return 0;
  constexpr Index kThreadBytes = 64 << 10;
  constexpr int kRounds = 100000;
  constexpr double kFlops = 4.0 * kRounds * 16 * 16 * 32 * 2;  // of a task
  const Buffer memory(static_cast<size_t>(pool.num_threads() * kThreadBytes));
  const int num_tasks = kTasksPerThread * pool.num_threads();
  const double start = now_seconds();
  pool.parallel_for(num_tasks, [&](int64_t, int thread) {
    // A 32-row product configures the thread's tiles the way the loop below uses them.
    char* const own = static_cast<char*>(memory.data()) + thread * kThreadBytes;
    auto* values = reinterpret_cast<bf16*>(own);
    gemm(values, 32, values, reinterpret_cast<float*>(own) + 4096, 32, 32, 32, 32, ops::cpu::Accumulate::kNo);
    for (int i = 0; i < kRounds; ++i)
      asm volatile(
          "tdpbf16ps %tmm6, %tmm4, %tmm0\n\t"
          "tdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
          "tdpbf16ps %tmm6, %tmm5, %tmm2\n\t"
          "tdpbf16ps %tmm7, %tmm5, %tmm3");
  });
  return kFlops * num_tasks / (now_seconds() - start) / 1e9;
}

}  // namespace longspan::measure
