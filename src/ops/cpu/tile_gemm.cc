#include "ops/cpu/tile_gemm.h"

#include <algorithm>
#include <type_traits>

namespace longspan::ops::cpu {
namespace {

template <class T>
Index packed_index(Index kk, Index j, Index k) {
  const Index depth = (k + kPanelDepth<T> - 1) / kPanelDepth<T> * kPanelDepth<T>;
  const Index panel = j / kPanelCols * kPanelCols * depth;
  if constexpr (std::is_same_v<T, float>) return panel + kk * kPanelCols + j % kPanelCols;
  return panel + kk / 2 * 2 * kPanelCols + j % kPanelCols * 2 + kk % 2;
}

}  // namespace

template <class T>
void pack_b(const T* b, Index ldb, Index k, Index n, T* packed) {
  std::fill_n(packed, packed_elements<T>(k, n), T(0.0f));
  for (Index kk = 0; kk < k; ++kk)
    for (Index j = 0; j < n; ++j) packed[packed_index<T>(kk, j, k)] = b[kk * ldb + j];
}

template <class T>
void pack_b_transposed(const T* bt, Index ldb, Index k, Index n, T* packed) {
  std::fill_n(packed, packed_elements<T>(k, n), T(0.0f));
  for (Index j = 0; j < n; ++j)
    for (Index kk = 0; kk < k; ++kk) packed[packed_index<T>(kk, j, k)] = bt[j * ldb + kk];
}

template <class T>
void gemm(const T* a, Index lda, const T* packed, float* c, Index ldc, Index m, Index n, Index k,
          Accumulate accumulate) {
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      float sum = accumulate == Accumulate::kYes ? c[i * ldc + j] : 0.0f;
      for (Index kk = 0; kk < k; ++kk)
        sum += static_cast<float>(a[i * lda + kk]) * static_cast<float>(packed[packed_index<T>(kk, j, k)]);
      c[i * ldc + j] = sum;
    }
}

template void pack_b<bf16>(const bf16*, Index, Index, Index, bf16*);
template void pack_b<float>(const float*, Index, Index, Index, float*);
template void pack_b_transposed<bf16>(const bf16*, Index, Index, Index, bf16*);
template void pack_b_transposed<float>(const float*, Index, Index, Index, float*);
template void gemm<bf16>(const bf16*, Index, const bf16*, float*, Index, Index, Index, Index, Accumulate);
template void gemm<float>(const float*, Index, const float*, float*, Index, Index, Index, Index, Accumulate);

}  // namespace longspan::ops::cpu
