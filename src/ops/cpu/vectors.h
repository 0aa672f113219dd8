// Vectors of floats over memory of any model dtype, and the elementary functions the kernels share. Compiled
// once a SIMD target (Highway): include it after hwy/foreach_target.h, in files built that way only.

// Toggled guard: the header is wanted again for each target.
#if defined(LONGSPAN_OPS_CPU_VECTORS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_OPS_CPU_VECTORS_H_
#undef LONGSPAN_OPS_CPU_VECTORS_H_
#else
#define LONGSPAN_OPS_CPU_VECTORS_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;

HWY_INLINE Index lanes() { return static_cast<Index>(hn::Lanes(F32())); }

// One vector from memory of any alignment, widened exactly.
HWY_INLINE Vec load(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE Vec load(const bf16* from) {
  const hn::Rebind<uint16_t, F32> du16;
  const hn::Rebind<uint32_t, F32> du32;
  const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
}
HWY_INLINE Vec load(const f16* from) {
  HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
  for (Index i = 0; i < lanes(); ++i) values[i] = static_cast<float>(from[i]);
  return hn::Load(F32(), values);
}

// A 256th of e4m3 numbers that are no NaN, by way of f16, whose exponent has a bias larger by 8: exact,
// subnormals too.
HWY_INLINE Vec load_256th(const f8e4m3* from) {
  const hn::Rebind<uint8_t, F32> du8;
  const hn::Rebind<int16_t, F32> di16;
  const hn::Rebind<hwy::float16_t, F32> df16;
  const auto codes = hn::PromoteTo(di16, hn::LoadU(du8, reinterpret_cast<const uint8_t*>(from)));
  // seeeemmm becomes s0eeeemmm0000000.
  const auto halves =
      hn::And(hn::ShiftRight<1>(hn::ShiftLeft<8>(codes)), hn::Set(di16, static_cast<int16_t>(0xbfff)));
  return hn::PromoteTo(F32(), hn::BitCast(df16, halves));
}
// NaN stays NaN.
HWY_INLINE Vec load(const f8e4m3* from) {
  const Vec value = hn::Mul(load_256th(from), hn::Set(F32(), 256.0f));
  return hn::IfThenElse(hn::Le(hn::Abs(value), hn::Set(F32(), 448.0f)), value, hn::NaN(F32()));
}

// The bits of bf16(value) in the low half of each lane; the same bits as the scalar conversion, NaN too.
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, F32>> bf16_bits(Vec value) {
  const hn::Rebind<uint32_t, F32> du32;
  const auto u = hn::BitCast(du32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du32, 1));
  const auto even = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du32, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(du32, 0x40));
  return hn::IfThenElse(hn::RebindMask(du32, hn::Eq(value, value)), even, quiet);
}

// One vector to memory of any alignment, rounded to nearest even.
HWY_INLINE void store(Vec value, float* to) { hn::StoreU(value, F32(), to); }
HWY_INLINE void store(Vec value, bf16* to) {
  const hn::Rebind<uint16_t, F32> du16;
  hn::StoreU(hn::TruncateTo(du16, bf16_bits(value)), du16, reinterpret_cast<uint16_t*>(to));
}
HWY_INLINE void store(Vec value, f16* to) {
  HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(value, F32(), values);
  for (Index i = 0; i < lanes(); ++i) to[i] = f16(values[i]);
}

// Saturates to +-448; the same bits as the scalar conversion, NaN too.
HWY_INLINE void store(Vec value, f8e4m3* to) {
  const hn::Rebind<uint8_t, F32> du8;
  const hn::Rebind<uint32_t, F32> du32;
  const Vec size = hn::Min(hn::Abs(value), hn::Set(F32(), 448.0f));
  const auto u = hn::BitCast(du32, size);
  const auto odd = hn::And(hn::ShiftRight<20>(u), hn::Set(du32, 1));
  const auto even = hn::ShiftRight<20>(hn::Add(u, hn::Add(odd, hn::Set(du32, 0x7ffff))));
  const auto normal = hn::Sub(even, hn::Set(du32, 120u << 3));
  // Below 2^-6 codes are multiples of 2^-9, the last place of 2^14.
  const Vec magic = hn::Set(F32(), 0x1p14f);
  const auto small = hn::Sub(hn::BitCast(du32, hn::Add(size, magic)), hn::BitCast(du32, magic));
  auto code = hn::IfThenElse(hn::RebindMask(du32, hn::Lt(size, hn::Set(F32(), 0x1p-6f))), small, normal);
  code = hn::IfThenElse(hn::RebindMask(du32, hn::Eq(value, value)), code, hn::Set(du32, 0x7f));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du32, value)), hn::Set(du32, 0x80));
  hn::StoreU(hn::TruncateTo(du8, hn::Or(code, sign)), du8, reinterpret_cast<uint8_t*>(to));
}

// The same for values that T holds exactly: cheaper.
HWY_INLINE void store_exact(Vec value, float* to) { store(value, to); }
HWY_INLINE void store_exact(Vec value, bf16* to) {
  const hn::Rebind<uint16_t, F32> du16;
  const hn::Rebind<uint32_t, F32> du32;
  const auto bits = hn::ShiftRight<16>(hn::BitCast(du32, value));
  hn::StoreU(hn::TruncateTo(du16, bits), du16, reinterpret_cast<uint16_t*>(to));
}

// "rnd" of the formulas: value as T holds it.
HWY_INLINE Vec rounded(Vec value, float) { return value; }
HWY_INLINE Vec rounded(Vec value, bf16) { return hn::BitCast(F32(), hn::ShiftLeft<16>(bf16_bits(value))); }

// How much of a vector lies inside its row: all of it, or the first count elements. The others read as zero
// and are never touched in memory.
struct Whole {};
struct Part {
  Index count;
};

template <class T>
HWY_INLINE Vec load(const T* from, Whole) {
  return load(from);
}
template <class T>
HWY_INLINE Vec load(const T* from, Part part) {
  T values[HWY_MAX_BYTES / sizeof(float)];
  std::fill_n(values, lanes(), T(0.0f));
  std::memcpy(values, from, static_cast<size_t>(part.count) * sizeof(T));
  return load(values);
}
template <class T>
HWY_INLINE void store(Vec value, T* to, Whole) {
  store(value, to);
}
template <class T>
HWY_INLINE void store(Vec value, T* to, Part part) {
  T values[HWY_MAX_BYTES / sizeof(float)];
  store(value, values);
  std::memcpy(to, values, static_cast<size_t>(part.count) * sizeof(T));
}

// fn(j, extent) for each vector of a row of n elements; the last one may be a part. Two loops, not a test in
// one: partial accesses go through memory and would take its registers away.
template <class Fn>
HWY_INLINE void for_each_vector(Index n, const Fn& fn) {
  Index j = 0;
  for (; j + lanes() <= n; j += lanes()) fn(j, Whole());
  if (j < n) fn(j, Part{n - j});
}

// Asks for n elements to be brought near (L2); rows of one head lie a page or more apart, which no hardware
// prefetcher follows.
template <class T>
HWY_INLINE void prefetch(const T* from, Index n) {
  constexpr Index kLine = 64 / sizeof(T);
  for (Index j = 0; j < n; j += kLine) __builtin_prefetch(from + j, /*rw=*/0, /*locality=*/2);
}

HWY_INLINE Vec set(float value) { return hn::Set(F32(), value); }
HWY_INLINE float sum_of_lanes(Vec value) { return hn::GetLane(hn::SumOfLanes(F32(), value)); }

// sum of x[i]^2. One order for each n: lane by lane in four interleaved chains, whatever the alignment.
template <class T>
HWY_INLINE float sum_of_squares(const T* x, Index n) {
  const Index step = lanes();
  Vec sum0 = hn::Zero(F32()), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  Index j = 0;
  for (; j + 4 * step <= n; j += 4 * step) {
    const Vec x0 = load(x + j), x1 = load(x + j + step);
    const Vec x2 = load(x + j + 2 * step), x3 = load(x + j + 3 * step);
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
    sum2 = hn::MulAdd(x2, x2, sum2);
    sum3 = hn::MulAdd(x3, x3, sum3);
  }
  for_each_vector(n - j, [&](Index i, auto extent) HWY_ATTR {
    const Vec x0 = load(x + j + i, extent);
    sum0 = hn::MulAdd(x0, x0, sum0);
  });
  return sum_of_lanes(hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

// 1 / x for x >= 1, within 1 ulp up to 2^126. A wide division occupies its unit for 16 cycles; AVX-512's
// estimate is good to 14 bits, and one Newton step doubles them.
HWY_INLINE Vec reciprocal(Vec x) {
#if HWY_TARGET <= HWY_AVX3
  const Vec estimate = hn::ApproximateReciprocal(x);
  return hn::MulAdd(estimate, hn::NegMulAdd(x, estimate, set(1.0f)), estimate);
#else
  return hn::Div(set(1.0f), x);
#endif
}

// e^x within 1 ulp: 0 below -87.33 (where floats become subnormal), inf from 88.72 on, NaN stays NaN.
// x = n ln 2 + r, e^r by a polynomial (Chebyshev nodes on |r| <= 0.35, 2e-9), n added to the exponent.
HWY_INLINE Vec exp(Vec x) {
  const hn::Rebind<int32_t, F32> di32;
  const Vec magic = set(12582912.0f);  // 1.5 * 2^23: leaves the nearest integer in the low bits
  const Vec shifted = hn::MulAdd(x, set(1.44269504f), magic);
  const Vec n = hn::Sub(shifted, magic);
  const Vec r =
      hn::MulAdd(n, set(-1.42860677e-6f), hn::MulAdd(n, set(-0.693145752f), x));  // ln 2 in two parts
  Vec p = hn::MulAdd(set(0.00139269268f), r, set(0.00836377405f));
  p = hn::MulAdd(p, r, set(0.0416665487f));
  p = hn::MulAdd(p, r, set(0.166665733f));
  p = hn::MulAdd(p, r, set(0.5f));
  const Vec y = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), set(1.0f));
  const auto bits = hn::Add(hn::BitCast(di32, y), hn::ShiftLeft<23>(hn::BitCast(di32, shifted)));
  const Vec in_range = hn::IfThenElseZero(hn::Ge(x, set(-87.33f)), hn::BitCast(F32(), bits));
  return hn::IfThenElse(hn::Le(x, set(88.72f)), in_range, hn::Mul(x, set(HUGE_VALF)));
}

// 1 / (1 + e^-x) for x from -88 on; 1 from 80 on. NaN stays NaN.
HWY_INLINE Vec bounded_sigmoid(Vec x) {
  const hn::Rebind<int32_t, F32> di32;
  const Vec t = hn::Min(set(80.0f), x);  // this order of operands hands NaN on
  const Vec magic = set(12582912.0f);    // as in exp, whose range checks the bounds save
  const Vec shifted = hn::NegMulAdd(t, set(1.44269504f), magic);
  const Vec n = hn::Sub(shifted, magic);
  const Vec r = hn::MulAdd(n, set(-1.42860677e-6f), hn::NegMulSub(n, set(0.693145752f), t));
  Vec p = hn::MulAdd(set(0.00139269268f), r, set(0.00836377405f));
  p = hn::MulAdd(p, r, set(0.0416665487f));
  p = hn::MulAdd(p, r, set(0.166665733f));
  p = hn::MulAdd(p, r, set(0.5f));
  const Vec y = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), set(1.0f));
  const auto bits = hn::Add(hn::BitCast(di32, y), hn::ShiftLeft<23>(hn::BitCast(di32, shifted)));
  return reciprocal(hn::Add(set(1.0f), hn::BitCast(F32(), bits)));
}

HWY_INLINE Vec sigmoid(Vec x) { return bounded_sigmoid(hn::Max(set(-88.0f), x)); }

// x / (1 + e^-x). Below -88 it stays at that point's value, -5e-37: never inf * 0.
HWY_INLINE Vec silu(Vec x) {
  const Vec bounded = hn::Max(set(-88.0f), x);
  return hn::Mul(bounded, bounded_sigmoid(bounded));
}

// log(1 + e^x), and x itself above 20, where the two agree in fp32.
HWY_INLINE Vec softplus(Vec x) {
  const Vec limit = set(20.0f);
  return hn::IfThenElse(hn::Le(x, limit), hn::Log1p(F32(), exp(hn::Min(x, limit))), x);
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
