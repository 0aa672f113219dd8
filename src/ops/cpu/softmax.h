// The row steps of attention that are neither product nor packing: online softmax and the row's end. Compiled
// once a SIMD target: include it after hwy/foreach_target.h. Scores are in units of log2, so that one product
// and one addition stand before each exponential.

// Toggled guard: the header is wanted again for each target.
#if defined(LONGSPAN_OPS_CPU_SOFTMAX_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_OPS_CPU_SOFTMAX_H_
#undef LONGSPAN_OPS_CPU_SOFTMAX_H_
#else
#define LONGSPAN_OPS_CPU_SOFTMAX_H_
#endif

#include <cmath>
#include <limits>

#include "ops/cpu/attention.h"
#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// 2^r for r in -0.5 .. 0.5, exactly 1 at 0; minimax. As far as P, the type of probabilities, goes: relative
// error 1.9e-9 (degree 6) for float, 2.8e-6 (degree 4) for bf16, whose own rounding is 2e-3.
HWY_INLINE Vec exp2_fraction(Vec r, float) {
  Vec y = set(1.53458121613e-4f);
  y = hn::MulAdd(y, r, set(1.33999311772e-3f));
  y = hn::MulAdd(y, r, set(9.61848895633e-3f));
  y = hn::MulAdd(y, r, set(5.55032877711e-2f));
  y = hn::MulAdd(y, r, set(2.40226468906e-1f));
  y = hn::MulAdd(y, r, set(6.93147205737e-1f));
  return hn::MulAdd(y, r, set(1.0f));
}
HWY_INLINE Vec exp2_fraction(Vec r, bf16) {
  Vec y = set(9.58285303845e-3f);
  y = hn::MulAdd(y, r, set(5.59064246778e-2f));
  y = hn::MulAdd(y, r, set(2.40240986116e-1f));
  y = hn::MulAdd(y, r, set(6.93124193403e-1f));
  return hn::MulAdd(y, r, set(1.0f));
}

// 2^x for x < 126: exactly 1 at 0, exactly 0 below -125, NaN stays NaN.
template <class P>
HWY_INLINE Vec exp2(Vec x) {
  const hn::Rebind<int32_t, F32> di32;
  const Vec magic = set(0x1.8p23f);  // adding it leaves round(x) in the low bits
  const Vec shifted = hn::Add(x, magic);
  const Vec r = hn::Sub(x, hn::Sub(shifted, magic));  // exact
  const Vec y = exp2_fraction(r, P());
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di32, shifted));
  const Vec result = hn::BitCast(F32(), hn::Add(hn::BitCast(di32, y), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, set(-125.0f)), result);
}

// Probabilities lie in 0 .. 1: no NaN care, and half up instead of half to even saves three of five
// instructions.
HWY_INLINE void store_probabilities(Vec p, float* to) { hn::StoreU(p, F32(), to); }
HWY_INLINE void store_probabilities(Vec p, bf16* to) {
  const hn::Rebind<uint16_t, F32> du16;
  const hn::Rebind<uint32_t, F32> du32;
  const auto bits = hn::ShiftRight<16>(hn::Add(hn::BitCast(du32, p), hn::Set(du32, 0x8000)));
  hn::StoreU(hn::TruncateTo(du16, bits), du16, reinterpret_cast<uint16_t*>(to));
}

// Largest of scores[0 .. n - 1]. Reads whole vectors.
HWY_INLINE float max_of(const float* scores, Index n) {
  const Vec lowest = set(-std::numeric_limits<float>::infinity());
  Vec max0 = lowest, max1 = lowest;
  Index j = 0;
  for (; j + 2 * lanes() <= n; j += 2 * lanes()) {
    max0 = hn::Max(max0, load(scores + j));
    max1 = hn::Max(max1, load(scores + j + lanes()));
  }
  for (; j < n; j += lanes()) {
    const auto valid = hn::FirstN(F32(), static_cast<size_t>(n - j));
    max0 = hn::Max(max0, hn::IfThenElse(valid, load(scores + j), lowest));
  }
  return hn::GetLane(hn::MaxOfLanes(F32(), hn::Max(max0, max1)));
}

// One step of a row's online softmax over scores[0 .. num_valid - 1] (times scale_log2): p gets
// 2^(score - max) and zeros up to num_padded. Returns the factor for what the row has summed before, 1 as
// long as the maximum stands. num_padded is a multiple of 2 vectors; scores are readable that far.
template <class P>
HWY_INLINE float softmax_step(const float* scores, Index num_valid, Index num_padded, float scale_log2, P* p,
                              SoftmaxState& state) {
  const float old_max = state.max;
  state.max = std::max(old_max, max_of(scores, num_valid) * scale_log2);
  const Vec scale = set(scale_log2), minus_max = set(-state.max);
  Vec sum0 = hn::Zero(F32()), sum1 = sum0;
  Index j = 0;
  for (; j + 2 * lanes() <= num_valid; j += 2 * lanes()) {
    const Vec p0 = exp2<P>(hn::MulAdd(load(scores + j), scale, minus_max));
    const Vec p1 = exp2<P>(hn::MulAdd(load(scores + j + lanes()), scale, minus_max));
    sum0 = hn::Add(sum0, p0);
    sum1 = hn::Add(sum1, p1);
    store_probabilities(p0, p + j);
    store_probabilities(p1, p + j + lanes());
  }
  for (; j < num_padded; j += lanes()) {
    const auto valid = hn::FirstN(F32(), static_cast<size_t>(std::max(num_valid - j, Index{0})));
    const Vec p0 = hn::IfThenElseZero(valid, exp2<P>(hn::MulAdd(load(scores + j), scale, minus_max)));
    sum0 = hn::Add(sum0, p0);
    store_probabilities(p0, p + j);
  }
  const float correction = old_max == state.max ? 1.0f : std::exp2(old_max - state.max);
  state.sum = state.sum * correction + sum_of_lanes(hn::Add(sum0, sum1));
  return correction;
}

HWY_INLINE void scale_row(float* row, Index n, float factor) {
  for_each_vector(n, [&](Index d, auto extent)
                         HWY_ATTR { store(hn::Mul(load(row + d, extent), set(factor)), row + d, extent); });
}

// out = rnd(o / sum), and with a gate (not nullptr) rnd(rnd(o / sum) * rnd(sigmoid(gate))).
template <class T>
HWY_INLINE void finish_row(const float* o, float sum, const T* gate, Index head_dim, T* out) {
  const Vec inverse = set(1.0f / sum);
  for_each_vector(head_dim, [&](Index d, auto extent) HWY_ATTR {
    Vec y = hn::Mul(load(o + d, extent), inverse);
    if (gate != nullptr) y = hn::Mul(rounded(y, T()), rounded(sigmoid(load(gate + d, extent)), T()));
    store(y, out + d, extent);
  });
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
