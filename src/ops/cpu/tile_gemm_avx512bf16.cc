// bf16 product on AVX512-BF16 (VDPBF16PS): blocks of up to 8 rows x 2 panels, one accumulator an element,
// pairs of k in order. Zen 4 and later, Cooper Lake, and processors whose AMX the kernel withholds.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/swiglu_avx512bf16.h"

namespace longspan::ops::cpu {
namespace {

constexpr Index kPairElems = 2 * kPanelCols;  // bf16 of one pair of k in a panel

struct Operands {
  const bf16* a;
  Index lda;
  const bf16* b;  // first panel
  Index panel_elems;
  float* c;
  Index ldc;
  Index cols;
  Index k;
  bool accumulate;
};

inline int load_pair(const bf16* a) {
  int pair;
  std::memcpy(&pair, a, sizeof(pair));
  return pair;
}

// One pair of k: pair_of(r) is row r's two elements of A.
template <int kRows, int kPanels, class PairOf>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512bf16"), gnu::always_inline]] inline void add_pair(
    const PairOf& pair_of, const bf16* b, Index panel_elems, __m512 (&sum)[kRows][kPanels]) {
  __m512bh columns[kPanels];
  UNROLL(2)
  for (int p = 0; p < kPanels; ++p) columns[p] = (__m512bh)_mm512_loadu_si512(b + p * panel_elems);
  UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const __m512bh pair = (__m512bh)_mm512_set1_epi32(pair_of(r));
    UNROLL(2)
    for (int p = 0; p < kPanels; ++p) sum[r][p] = _mm512_dpbf16_ps(sum[r][p], pair, columns[p]);
  }
}

template <int kRows, int kPanels>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512bf16")]] void block(const Operands& args) {
  __mmask16 mask[kPanels];
  for (int p = 0; p < kPanels; ++p)
    mask[p] = static_cast<__mmask16>((1u << std::min<Index>(16, args.cols - p * kPanelCols)) - 1);

  __m512 sum[kRows][kPanels];
  UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    UNROLL(2)
    for (int p = 0; p < kPanels; ++p)
      sum[r][p] = args.accumulate ? _mm512_maskz_loadu_ps(mask[p], args.c + r * args.ldc + p * kPanelCols)
                                  : _mm512_setzero_ps();
  }

  const bf16* b = args.b;
  const bf16* a = args.a;
  for (Index pairs = args.k / 2; pairs > 0; --pairs, a += 2, b += kPairElems)
    add_pair<kRows, kPanels>([&](int r) { return load_pair(a + r * args.lda); }, b, args.panel_elems, sum);
  if (args.k % 2 != 0)
    add_pair<kRows, kPanels>([&](int r) { return int{a[r * args.lda].bits}; }, b, args.panel_elems, sum);
  UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    UNROLL(2)
    for (int p = 0; p < kPanels; ++p)
      _mm512_mask_storeu_ps(args.c + r * args.ldc + p * kPanelCols, mask[p], sum[r][p]);
  }
}

template <int kRows>
void rows_of(Operands args, Index n) {
  const bf16* packed = args.b;
  float* c = args.c;
  for (Index j = 0; j < n; j += 2 * kPanelCols) {
    args.b = packed + j / kPanelCols * args.panel_elems;
    args.c = c + j;
    args.cols = std::min(n - j, 2 * kPanelCols);
    args.cols > kPanelCols ? block<kRows, 2>(args) : block<kRows, 1>(args);
  }
}

void product(const bf16* a, Index lda, const bf16* packed, float* c, Index ldc, Index m, Index n, Index k,
             Accumulate accumulate) {
  Operands args{.a = a,
                .lda = lda,
                .b = packed,
                .panel_elems = packed_elements<bf16>(k, kPanelCols),
                .c = c,
                .ldc = ldc,
                .cols = 0,
                .k = k,
                .accumulate = accumulate == Accumulate::kYes};
  for (Index i = 0; i < m;) {
    args.a = a + i * lda;
    args.c = c + i * ldc;
    const Index left = m - i;
    if (left >= 8) {
      rows_of<8>(args, n);
      i += 8;
    } else if (left >= 4) {
      rows_of<4>(args, n);
      i += 4;
    } else if (left >= 2) {
      rows_of<2>(args, n);
      i += 2;
    } else {
      rows_of<1>(args, n);
      i += 1;
    }
  }
}

// VCVTNEPS2BF16 rounds as bf16(float) does, except that it takes denormals for zeros, as the products here
// do.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512bf16")]] void round_rows(const float* c, Index ldc,
                                                                        const float* bias, bf16* out,
                                                                        Index ldo, Index m, Index n) {
  for (Index i = 0; i < m; ++i, c += ldc, out += ldo)
    for (Index j = 0; j < n; j += 16) {
      const auto mask = static_cast<__mmask16>((1u << std::min<Index>(16, n - j)) - 1);
      __m512 sum = _mm512_maskz_loadu_ps(mask, c + j);
      if (bias != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias + j));
      _mm256_mask_storeu_epi16(out + j, mask, (__m256i)_mm512_cvtneps_pbh(sum));
    }
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512bf16")]] void swiglu_rows(const float* c, Index ldc, bf16* out,
                                                                         Index ldo, Index m, Index n) {
  for (Index i = 0; i < m; ++i, c += ldc, out += ldo)
    for (Index j = 0; j < n; j += kPanelCols)
      swiglu_panel(c + 2 * j, out + j, static_cast<__mmask16>((1u << std::min(kPanelCols, n - j)) - 1));
}

}  // namespace

BFloat16Unit avx512bf16() {
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512bf16"))
    return {};
  // Sapphire Rapids issues one VDPBF16PS in two cycles and two multiply-adds in one: 89 against 152 GFLOP/s.
  const bool beats_float = __builtin_cpu_is("amd");
  return {.gemm = product, .round_rows = round_rows, .swiglu_rows = swiglu_rows, .beats_float = beats_float};
}

}  // namespace longspan::ops::cpu
