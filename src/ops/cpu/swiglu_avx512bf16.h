// SwiGLU of one row of sums in AVX512-BF16, short enough to stand beside tile steps. The same arithmetic as
// silu of vectors.h on AVX-512, operation by operation: the fused and the separate form agree to the bit.
// Operators and maskz_ forms where g++ 12 takes a plain intrinsic's undefined source for a mistake.
#pragma once

#include <immintrin.h>

#include "core/tensor.h"

namespace longspan::ops::cpu {

using Float16x = float __attribute__((vector_size(64)));
using Bits16x = uint32_t __attribute__((vector_size(64)));

// out[j] = rnd(silu(rnd(sums[j])) * rnd(sums[16 + j])) where mask has a bit.
[[gnu::target("avx512f,avx512bw,avx512bf16"), gnu::always_inline]] inline void swiglu_panel(const float* sums,
                                                                                            bf16* out,
                                                                                            __mmask16 mask) {
  constexpr __mmask16 kAll = 0xffff;
  const auto halves = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(sums + 16), _mm512_loadu_ps(sums));
  const auto gate_bits =
      (Bits16x)_mm512_maskz_cvtepu16_epi32(kAll, _mm512_maskz_extracti64x4_epi64(0xff, halves, 0));
  const auto up_bits =
      (Bits16x)_mm512_maskz_cvtepu16_epi32(kAll, _mm512_maskz_extracti64x4_epi64(0xff, halves, 1));
  const auto up = (Float16x)(up_bits << 16);

  const auto x = (Float16x)_mm512_maskz_max_ps(kAll, _mm512_set1_ps(-88.0f), (__m512)(gate_bits << 16));
  const __m512 t = _mm512_maskz_min_ps(kAll, _mm512_set1_ps(80.0f), (__m512)x);
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  const __m512 shifted = _mm512_fnmadd_ps(t, _mm512_set1_ps(1.44269504f), magic);
  const __m512 n = shifted - magic;
  const __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-1.42860677e-6f),
                                   _mm512_fnmsub_ps(n, _mm512_set1_ps(0.693145752f), t));
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.00139269268f), r, _mm512_set1_ps(0.00836377405f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0416665487f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.166665733f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  const auto y = (Float16x)_mm512_fmadd_ps(r * r, p, r) + 1.0f;
  const auto divisor = (__m512)(1.0f + (Float16x)((Bits16x)y + ((Bits16x)shifted << 23)));
  const __m512 estimate = _mm512_maskz_rcp14_ps(kAll, divisor);
  const __m512 sigmoid =
      _mm512_fmadd_ps(estimate, _mm512_fnmadd_ps(divisor, estimate, _mm512_set1_ps(1.0f)), estimate);
  const auto product = x * (Float16x)sigmoid * up;

  // Not VCVTNEPS2BF16, which would take denormals for zeros where the separate SwiGLU does not.
  const auto bits = (Bits16x)product;
  const auto even = (__m512i)(bits + ((bits >> 16 & 1) + 0x7fff));
  const __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)product, (__m512)product, _CMP_UNORD_Q);
  const auto result = (Bits16x)_mm512_mask_or_epi32(even, is_nan, (__m512i)bits, _mm512_set1_epi32(0x400000));
  _mm512_mask_cvtepi32_storeu_epi16(out, mask, (__m512i)(result >> 16));
}

}  // namespace longspan::ops::cpu
