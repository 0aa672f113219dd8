// Small dense products on the calling thread: C = A B or C += A B with fp32 sums. The one inner loop under
// matmul, attention and GDN. B is packed into panels of 16 columns. Element (i, j) of C is summed over k in
// an order that depends on k alone, so a row never depends on its neighbours nor on m or n.
//
// The instruction set is chosen once at run time: AMX, AVX512-BF16, AVX-512, AVX2, SSE4, NEON; the
// environment variable LONGSPAN_CPU_ISA (amx, avx512bf16, avx512, avx2, sse4, neon) forces one. Bits may
// differ between them: AMX and AVX512-BF16 add in an order of their own and take denormals for zeros, the
// others add one product at a time.
#pragma once

#include "core/tensor.h"

namespace longspan::ops::cpu {

inline constexpr Index kPanelCols = 16;

// Panel layout of B [k, n], n rounded up to panels and k to kPanelDepth with zeros:
//   bf16:  [n / 16][k / 2][16][2]   (pairs of k side by side, as AMX and AVX512-BF16 read them)
//   float: [n / 16][k][16]
template <class T>
inline constexpr Index kPanelDepth = 32;
template <>
inline constexpr Index kPanelDepth<float> = 1;

// Elements of packed B.
template <class T>
constexpr Index packed_elements(Index k, Index n) {
  const Index depth = (k + kPanelDepth<T> - 1) / kPanelDepth<T> * kPanelDepth<T>;
  return (n + kPanelCols - 1) / kPanelCols * kPanelCols * depth;
}

// packed <- B, where b[kk * ldb + j] is B(kk, j). T is bf16 or float; packed is 64-byte aligned.
template <class T>
void pack_b(const T* b, Index ldb, Index k, Index n, T* packed);

// packed <- B, where bt[j * ldb + kk] is B(kk, j): rows of bt are B's columns (a weight [n, k], or K for Q
// K^T).
template <class T>
void pack_b_transposed(const T* bt, Index ldb, Index k, Index n, T* packed);

enum class Accumulate : uint8_t { kNo, kYes };

// c[i * ldc + j] (+)= sum_kk a[i * lda + kk] B(kk, j) for i < m, j < n; k >= 1. a needs no alignment and no
// padding.
template <class T>
void gemm(const T* a, Index lda, const T* packed, float* c, Index ldc, Index m, Index n, Index k,
          Accumulate accumulate);

// out[i * ldo + j] = rnd(c[i * ldc + j] + bias[j]) for i < m, j < n, to nearest even; bias [n] or nullptr.
template <class T>
void round_rows(const float* c, Index ldc, const float* bias, T* out, Index ldo, Index m, Index n);

}  // namespace longspan::ops::cpu
