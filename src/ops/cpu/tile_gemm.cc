#include "ops/cpu/tile_gemm.h"

#include <cstdlib>

#include "core/error.h"
#include "ops/cpu/gemm_kernels.h"

namespace longspan::ops::cpu {
namespace {

std::vector<GemmKernels> find_kernels() {
  std::vector<GemmKernels> list = portable_kernels();
  // A matrix unit replaces the bf16 product only: the rest comes from the best portable target.
  const auto prefer = [&](std::string_view name, GemmFn<bf16> gemm_bf16) {
    if (gemm_bf16 == nullptr) return;
    list.insert(list.begin(), list.front());
    list.front().name = name;
    list.front().gemm_bf16 = gemm_bf16;
  };
  prefer("avx512bf16", avx512bf16_gemm());
  prefer("amx", amx_gemm());
  return list;
}

const GemmKernels& choose_kernels() {
  const std::vector<GemmKernels>& list = available_kernels();
  const char* wanted = std::getenv("LONGSPAN_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return list.front();
  std::string names;
  for (const GemmKernels& kernels : list) {
    if (kernels.name == wanted) return kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels.name);
  }
  fail(ErrorKind::kInvalid, "LONGSPAN_CPU_ISA: got {}, this machine has {}", wanted, names);
}

}  // namespace

const std::vector<GemmKernels>& available_kernels() {
  static const std::vector<GemmKernels> list = find_kernels();
  return list;
}

const GemmKernels& chosen_kernels() {
  static const GemmKernels& chosen = choose_kernels();
  return chosen;
}

template <>
void pack_b(const bf16* b, Index ldb, Index k, Index n, bf16* packed) {
  chosen_kernels().pack_bf16(b, ldb, k, n, packed);
}
template <>
void pack_b(const float* b, Index ldb, Index k, Index n, float* packed) {
  chosen_kernels().pack_f32(b, ldb, k, n, packed);
}
template <>
void pack_b_transposed(const bf16* bt, Index ldb, Index k, Index n, bf16* packed) {
  chosen_kernels().pack_transposed_bf16(bt, ldb, k, n, packed);
}
template <>
void pack_b_transposed(const float* bt, Index ldb, Index k, Index n, float* packed) {
  chosen_kernels().pack_transposed_f32(bt, ldb, k, n, packed);
}
template <>
void gemm(const bf16* a, Index lda, const bf16* packed, float* c, Index ldc, Index m, Index n, Index k,
          Accumulate accumulate) {
  chosen_kernels().gemm_bf16(a, lda, packed, c, ldc, m, n, k, accumulate);
}
template <>
void gemm(const float* a, Index lda, const float* packed, float* c, Index ldc, Index m, Index n, Index k,
          Accumulate accumulate) {
  chosen_kernels().gemm_f32(a, lda, packed, c, ldc, m, n, k, accumulate);
}

}  // namespace longspan::ops::cpu
