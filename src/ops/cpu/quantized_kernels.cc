// Unpacking of quantised panels, and decode rows times their codes, over Highway.
#include "ops/cpu/quantized_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/quantized_kernels.cc"
#include <hwy/foreach_target.h>

#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {
namespace {

using DU = hn::RebindToUnsigned<F32>;
using Words = hn::Vec<DU>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
constexpr int kPanelVecs = static_cast<int>(kPanelCols) / kLanes;

// Scale and zero of the columns of one vector.
struct Group {
  Vec scale;
  Vec zero;
};

HWY_INLINE Vec load_scales(const CodePanel& codes, Index at) {
  if (codes.scale_dtype == DType::kF32) return load(static_cast<const float*>(codes.scales) + at);
  if (codes.scale_dtype == DType::kBF16) return load(static_cast<const bf16*>(codes.scales) + at);
  return load(static_cast<const f16*>(codes.scales) + at);
}

// What codes are multiplied with: those of e4m3 are read as 256ths.
HWY_INLINE Group load_group(const CodePanel& codes, Index group, Index col) {
  const hn::Rebind<uint8_t, F32> du8;
  const hn::Rebind<int32_t, F32> di32;
  const Index at = group * kPanelCols + col;
  const Vec zero = codes.zeros != nullptr
                       ? hn::ConvertTo(F32(), hn::PromoteTo(di32, hn::LoadU(du8, codes.zeros + at)))
                       : set(codes.kind == CodeKind::kInt4 ? 8.0f : 0.0f);
  const Vec scale = load_scales(codes, at);
  return {codes.kind == CodeKind::kInt4 ? scale : hn::Mul(scale, set(256.0f)), zero};
}

HWY_INLINE Vec dequantize(Vec code, const Group& group) {
  return hn::Mul(hn::Sub(code, group.zero), group.scale);
}

// Codes of one vector of columns, kPerStep of them along k: step = load(codes, k, col), the code of element
// k + i (a constant after unrolling) as a float.
struct Int4Codes {
  static constexpr Index kPerStep = 8;
  using Step = Words;
  static HWY_INLINE Step load(const CodePanel& codes, Index k, Index col) {
    return hn::LoadU(DU(), codes.codes + k / kPerStep * kPanelCols + col);
  }
  static HWY_INLINE Vec value(Step word, int i) {
    const DU du;
    const auto code = hn::And(hn::ShiftRightSame(word, i / 2 * 4 + i % 2 * 16), hn::Set(du, 15));
    return hn::ConvertTo(F32(), hn::BitCast(hn::Rebind<int32_t, F32>(), code));
  }
};

struct E4M3Codes {
  static constexpr Index kPerStep = 2;
  using Step = const f8e4m3*;
  static HWY_INLINE Step load(const CodePanel& codes, Index k, Index col) {
    return reinterpret_cast<const f8e4m3*>(codes.codes) + k * kPanelCols + col;
  }
  static HWY_INLINE Vec value(Step step, int i) { return load_256th(step + i * kPanelCols); }
};

// Bits of bf16(value) in the high half, for finite values.
HWY_INLINE Words rounded_bits(Vec value) {
  const DU du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
}

// Two neighbours along k of one vector of columns, at row k of a panel.
HWY_INLINE void store_pair(Vec even, Vec odd, Index k, Index col, bf16* panel) {
  const DU du;
  const auto pair =
      hn::OrAnd(hn::ShiftRight<16>(rounded_bits(even)), rounded_bits(odd), hn::Set(du, 0xffff0000u));
  hn::StoreU(pair, du, reinterpret_cast<uint32_t*>(panel + k * kPanelCols + 2 * col));
}
HWY_INLINE void store_pair(Vec even, Vec odd, Index k, Index col, float* panel) {
  hn::StoreU(even, F32(), panel + k * kPanelCols + col);
  hn::StoreU(odd, F32(), panel + (k + 1) * kPanelCols + col);
}

// One step's values from k on, count of them inside the row; all of one group, or each of its own.
template <class Codes, class T>
HWY_INLINE void unpack_step(const CodePanel& codes, Index k, Index count, Index col, const Group* group,
                            T* panel) {
  const typename Codes::Step step = Codes::load(codes, k, col);
  UNROLL(4)
  for (int i = 0; i < static_cast<int>(Codes::kPerStep); i += 2) {
    if (i >= count) return;
    const auto group_at = [&](Index kk) HWY_ATTR {
      if (group != nullptr) return *group;
      return load_group(codes, codes.group_of != nullptr ? codes.group_of[kk] : kk / codes.group_size, col);
    };
    const Vec even = dequantize(Codes::value(step, i), group_at(k + i));
    if (i + 1 < count) {
      store_pair(even, dequantize(Codes::value(step, i + 1), group_at(k + i + 1)), k + i, col, panel);
    } else if constexpr (std::is_same_v<T, float>) {
      store(even, panel + (k + i) * kPanelCols + col);
    } else {
      store_pair(even, hn::Zero(F32()), k + i, col, panel);
    }
  }
}

template <class Codes, class T>
void unpack(const CodePanel& codes, T* panel) {
  const Index depth = packed_elements<T>(codes.k, kPanelCols) / kPanelCols;
  const Index even_k = std::min(depth, (codes.k + 1) / 2 * 2);
  std::memset(static_cast<void*>(panel + even_k * kPanelCols), 0,
              static_cast<size_t>((depth - even_k) * kPanelCols) * sizeof(T));
  const bool whole_steps = codes.group_of == nullptr && codes.group_size % Codes::kPerStep == 0;
  const Index stretch = whole_steps ? codes.group_size : Codes::kPerStep;
  for (Index begin = 0; begin < codes.k; begin += stretch)
    for (int v = 0; v < kPanelVecs; ++v) {
      const Index col = v * kLanes;
      const Group group = load_group(codes, whole_steps ? begin / stretch : 0, col);
      for (Index k = begin; k < std::min(begin + stretch, codes.k); k += Codes::kPerStep)
        unpack_step<Codes>(codes, k, codes.k - k, col, whole_steps ? &group : nullptr, panel);
    }
}

void unpack_bf16(const CodePanel& codes, bf16* panel) {
  codes.kind == CodeKind::kInt4 ? unpack<Int4Codes>(codes, panel) : unpack<E4M3Codes>(codes, panel);
}
void unpack_float(const CodePanel& codes, float* panel) {
  codes.kind == CodeKind::kInt4 ? unpack<Int4Codes>(codes, panel) : unpack<E4M3Codes>(codes, panel);
}

void widen(const TensorView& x, float* values, Index ld) {
  const Index k = x.dim(1);
  for (Index i = 0; i < x.dim(0); ++i, values += ld) {
    const bf16* row = x.as<bf16>() + i * x.stride(0);
    for_each_vector(k,
                    [&](Index j, auto extent) HWY_ATTR { store(load(row + j, extent), values + j, extent); });
    std::fill(values + k, values + ld, 0.0f);
  }
}

void add_groups(const float* values, Index ld, Index m, Index k, Index group_size, float* sums) {
  for (Index i = 0; i < m; ++i)
    for (Index begin = 0; begin < k; begin += group_size) {
      Vec sum = hn::Zero(F32());
      for_each_vector(std::min(group_size, k - begin), [&](Index j, auto extent) HWY_ATTR {
        sum = hn::Add(sum, load(values + i * ld + begin + j, extent));
      });
      *sums++ = sum_of_lanes(sum);
    }
}

// 16 + code as a float: the four bits are the first of the mantissa behind 2^4.
template <int kFrom>
HWY_INLINE Vec sixteen_plus_code(Words word) {
  constexpr int kTo = 19;
  const DU du;
  Words moved = word;
  if constexpr (kFrom < kTo) moved = hn::ShiftLeft<kTo - kFrom>(word);
  if constexpr (kFrom > kTo) moved = hn::ShiftRight<kFrom - kTo>(word);
  return hn::BitCast(F32(), hn::OrAnd(hn::Set(du, 0x41800000u), moved, hn::Set(du, 15u << kTo)));
}

// sum[r] += pair kPair of the word's codes times those values of row r.
template <int kPair, int kRows>
HWY_INLINE void add_pair(Words word, const float* values, Index ld, Vec (&sums)[kRows][4]) {
  const Vec even = sixteen_plus_code<4 * kPair>(word);
  const Vec odd = sixteen_plus_code<16 + 4 * kPair>(word);
  UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    sums[r][kPair] = hn::MulAdd(set(values[r * ld + 2 * kPair]), even, sums[r][kPair]);
    sums[r][kPair] = hn::MulAdd(set(values[r * ld + 2 * kPair + 1]), odd, sums[r][kPair]);
  }
}

// Four chains a row hide the latency of the multiply-adds; sum (x (c - z)) = sum (x (16 + c)) - (16 + z) sum
// x.
template <int kRows>
void multiply_rows(const CodePanel& codes, const CodeRows& rows, Index first, Index col, float* out,
                   Index ld_out) {
  const DU du;
  const float* values = rows.values + first * rows.ld;
  Vec totals[kRows];
  UNROLL(4)
  for (int r = 0; r < kRows; ++r) totals[r] = hn::Zero(F32());
  for (Index g = 0; g < rows.num_groups; ++g) {
    Vec sums[kRows][4];
    UNROLL(4)
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = hn::Zero(F32());
    const Index end = std::min((g + 1) * codes.group_size, codes.k);
    for (Index k = g * codes.group_size; k < end; k += 8) {
      const Words word = hn::LoadU(du, codes.codes + k / 8 * kPanelCols + col);
      add_pair<0>(word, values + k, rows.ld, sums);
      add_pair<1>(word, values + k, rows.ld, sums);
      add_pair<2>(word, values + k, rows.ld, sums);
      add_pair<3>(word, values + k, rows.ld, sums);
    }
    const Group group = load_group(codes, g, col);
    const Vec offset = hn::Add(group.zero, set(16.0f));
    UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const Vec sum = hn::Add(hn::Add(sums[r][0], sums[r][1]), hn::Add(sums[r][2], sums[r][3]));
      const Vec of_codes = hn::NegMulAdd(offset, set(rows.sums[(first + r) * rows.num_groups + g]), sum);
      totals[r] = hn::MulAdd(group.scale, of_codes, totals[r]);
    }
  }
  UNROLL(4)
  for (int r = 0; r < kRows; ++r) store(totals[r], out + (first + r) * ld_out + col);
}

// Element k + kPlace of FP8 codes, in the chain of that place.
template <int kPlace, int kRows>
HWY_INLINE void add_byte(const f8e4m3* codes, const float* values, Index ld, Vec (&sums)[kRows][2]) {
  const Vec code = load_256th(codes + kPlace * kPanelCols);
  UNROLL(4)
  for (int r = 0; r < kRows; ++r)
    sums[r][kPlace] = hn::MulAdd(set(values[r * ld + kPlace]), code, sums[r][kPlace]);
}

// The same for FP8 codes, whose zero is 0. Reading a code takes longer than a multiply-add: two chains hide
// the latency, and the more rows share a code the better.
template <int kRows>
void multiply_byte_rows(const CodePanel& codes, const CodeRows& rows, Index first, Index col, float* out,
                        Index ld_out) {
  const f8e4m3* bytes = reinterpret_cast<const f8e4m3*>(codes.codes) + col;
  const float* values = rows.values + first * rows.ld;
  Vec totals[kRows];
  UNROLL(4)
  for (int r = 0; r < kRows; ++r) totals[r] = hn::Zero(F32());
  for (Index g = 0; g < rows.num_groups; ++g) {
    Vec sums[kRows][2];
    UNROLL(4)
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = hn::Zero(F32());
    const Index end = std::min((g + 1) * codes.group_size, codes.k);
    Index k = g * codes.group_size;
    for (; k + 2 <= end; k += 2) {
      add_byte<0>(bytes + k * kPanelCols, values + k, rows.ld, sums);
      add_byte<1>(bytes + k * kPanelCols, values + k, rows.ld, sums);
    }
    if (k < end) add_byte<0>(bytes + k * kPanelCols, values + k, rows.ld, sums);
    const Vec scale = load_group(codes, g, col).scale;
    UNROLL(4)
    for (int r = 0; r < kRows; ++r) totals[r] = hn::MulAdd(scale, hn::Add(sums[r][0], sums[r][1]), totals[r]);
  }
  UNROLL(4)
  for (int r = 0; r < kRows; ++r) store(totals[r], out + (first + r) * ld_out + col);
}

void multiply_int4(const CodePanel& codes, const CodeRows& rows, float* sums, Index ld_sums) {
  constexpr int kRowsAtOnce = kLanes == 16 ? 4 : 2;  // the accumulators fill half the registers, or all
  for (int v = 0; v < kPanelVecs; ++v) {
    Index row = 0;
    for (; row + kRowsAtOnce <= rows.m; row += kRowsAtOnce)
      multiply_rows<kRowsAtOnce>(codes, rows, row, v * kLanes, sums, ld_sums);
    for (; row < rows.m; ++row) multiply_rows<1>(codes, rows, row, v * kLanes, sums, ld_sums);
  }
}

void multiply_bytes(const CodePanel& codes, const CodeRows& rows, float* sums, Index ld_sums) {
  for (int v = 0; v < kPanelVecs; ++v) {
    const Index col = v * kLanes;
    Index row = 0;
    for (; row + 4 <= rows.m; row += 4) multiply_byte_rows<4>(codes, rows, row, col, sums, ld_sums);
    for (; row + 2 <= rows.m; row += 2) multiply_byte_rows<2>(codes, rows, row, col, sums, ld_sums);
    if (row < rows.m) multiply_byte_rows<1>(codes, rows, row, col, sums, ld_sums);
  }
}

void multiply(const CodePanel& codes, const CodeRows& rows, float* sums, Index ld_sums) {
  (codes.kind == CodeKind::kInt4 ? multiply_int4 : multiply_bytes)(codes, rows, sums, ld_sums);
}

}  // namespace
}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {

HWY_EXPORT(unpack_bf16);
HWY_EXPORT(unpack_float);
HWY_EXPORT(multiply);
HWY_EXPORT(widen);
HWY_EXPORT(add_groups);

void unpack_panel(const CodePanel& codes, bf16* panel) { HWY_DYNAMIC_DISPATCH(unpack_bf16)(codes, panel); }
void unpack_panel(const CodePanel& codes, float* panel) { HWY_DYNAMIC_DISPATCH(unpack_float)(codes, panel); }
void widen_rows(const TensorView& x, float* values, Index ld) { HWY_DYNAMIC_DISPATCH(widen)(x, values, ld); }
void sum_groups(const float* values, Index ld, Index m, Index k, Index group_size, float* sums) {
  HWY_DYNAMIC_DISPATCH(add_groups)(values, ld, m, k, group_size, sums);
}
void multiply_panel(const CodePanel& codes, const CodeRows& rows, float* sums, Index ld_sums) {
  HWY_DYNAMIC_DISPATCH(multiply)(codes, rows, sums, ld_sums);
}

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
