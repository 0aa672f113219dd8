#include "ops/cpu/tile_gemm.h"

#include <cstdlib>

#include "core/error.h"
#include "ops/cpu/gemm_kernels.h"

namespace longspan::ops::cpu {
namespace {

std::vector<GemmKernels> find_kernels() {
  std::vector<GemmKernels> list = portable_kernels();
  // Special instructions replace a few functions: the rest comes from the best portable target.
  const GemmKernels portable = list.front();
  const BFloat16Unit bfloat16 = avx512bf16();
  if (bfloat16.gemm != nullptr) {
    GemmKernels kernels = portable;
    kernels.name = "avx512bf16";
    kernels.for_bf16.gemm = bfloat16.gemm;
    kernels.for_bf16.round_rows = bfloat16.round_rows;
    kernels.for_bf16.swiglu_rows = bfloat16.swiglu_rows;
    list.insert(list.begin() + (bfloat16.beats_float ? 0 : 1), kernels);
  }
  const MatrixUnit matrix_unit = amx();
  if (matrix_unit.gemm != nullptr && bfloat16.round_rows != nullptr) {
    GemmKernels kernels = portable;
    kernels.name = "amx";
    kernels.for_bf16.gemm = matrix_unit.gemm;
    kernels.for_bf16.round_rows = bfloat16.round_rows;  // multiply_packed does both the same way
    kernels.for_bf16.swiglu_rows = bfloat16.swiglu_rows;
    kernels.matrix_unit = matrix_unit;
    list.insert(list.begin(), kernels);
  }
  return list;
}

const GemmKernels& choose_kernels() {
  const std::vector<GemmKernels>& list = available_kernels();
  const char* wanted = std::getenv("LONGSPAN_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return list.front();
  std::string names;
  for (const GemmKernels& kernels : list) {
    if (kernels.name == wanted) {
      use_simd_target(kernels.simd_target);
      return kernels;
    }
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

template <class T>
void pack_b(const T* b, Index ldb, Index k, Index n, T* packed) {
  chosen_kernels().of<T>().pack_b(b, ldb, k, n, packed);
}

template <class T>
void pack_b_transposed(const T* bt, Index ldb, Index k, Index n, T* packed) {
  chosen_kernels().of<T>().pack_b_transposed(bt, ldb, k, n, packed);
}

template <class T>
void gemm(const T* a, Index lda, const T* packed, float* c, Index ldc, Index m, Index n, Index k,
          Accumulate accumulate) {
  chosen_kernels().of<T>().gemm(a, lda, packed, c, ldc, m, n, k, accumulate);
}

template <class T>
void round_rows(const float* c, Index ldc, const float* bias, T* out, Index ldo, Index m, Index n) {
  chosen_kernels().of<T>().round_rows(c, ldc, bias, out, ldo, m, n);
}

template void pack_b<bf16>(const bf16*, Index, Index, Index, bf16*);
template void pack_b<float>(const float*, Index, Index, Index, float*);
template void pack_b_transposed<bf16>(const bf16*, Index, Index, Index, bf16*);
template void pack_b_transposed<float>(const float*, Index, Index, Index, float*);
template void gemm<bf16>(const bf16*, Index, const bf16*, float*, Index, Index, Index, Index, Accumulate);
template void gemm<float>(const float*, Index, const float*, float*, Index, Index, Index, Index, Accumulate);
template void round_rows<bf16>(const float*, Index, const float*, bf16*, Index, Index, Index);
template void round_rows<float>(const float*, Index, const float*, float*, Index, Index, Index);

}  // namespace longspan::ops::cpu
