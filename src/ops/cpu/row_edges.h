// The last vector of a row, of which only some elements exist. Compiled once a SIMD target.

// Toggled guard: the header is wanted again for each target.
#if defined(LONGSPAN_OPS_CPU_ROW_EDGES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_OPS_CPU_ROW_EDGES_H_
#undef LONGSPAN_OPS_CPU_ROW_EDGES_H_
#else
#define LONGSPAN_OPS_CPU_ROW_EDGES_H_
#endif

#include <cstring>

#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// The first min(count, lanes) elements; the others read as zero and are never touched in memory.
template <class T>
HWY_INLINE Vec load_up_to(const T* from, Index count) {
  if (count >= lanes()) return load(from);
  T part[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(part, from, static_cast<size_t>(count) * sizeof(T));
  return load(part);
}
template <class T>
HWY_INLINE void store_up_to(Vec value, T* to, Index count) {
  if (count >= lanes()) return store(value, to);
  T part[HWY_MAX_BYTES / sizeof(float)];
  store(value, part);
  std::memcpy(to, part, static_cast<size_t>(count) * sizeof(T));
}

// "rnd" of the formulas: value as T holds it.
HWY_INLINE Vec rounded(Vec value, float) { return value; }
HWY_INLINE Vec rounded(Vec value, bf16) { return hn::BitCast(F32(), hn::ShiftLeft<16>(bf16_bits(value))); }

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
