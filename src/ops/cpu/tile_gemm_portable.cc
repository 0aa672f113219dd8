// Product and packing over Highway: AVX-512, AVX2, SSE4, NEON. One accumulator an element, k in order; bf16
// is widened to float, so every target with fused multiply-add gives the same bits.
#include <algorithm>
#include <cstring>

#include "core/sanitizer.h"
#include "ops/cpu/gemm_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/tile_gemm_portable.cc"
#include <hwy/foreach_target.h>

#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {
namespace {

using D = F32;
using DU = hn::RebindToUnsigned<D>;
using V = Vec;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
static_assert(kLanes <= kPanelCols);
constexpr int kPanelVecs = static_cast<int>(kPanelCols) / kLanes;
constexpr int kBlockRows = std::max(kLanes / 2, 2);      // 8 accumulators a panel
constexpr int kAccumulators = kPanelVecs == 1 ? 16 : 8;  // AVX-512 has registers for two panels
constexpr Index kDepth = 256;                            // k of one pass over a block of A
constexpr Index kRowElems = kPanelCols;                  // floats of one k in a panel

// Panels side by side: with fewer than 8 accumulators a multiply-add waits for the one before it. One row of
// 4 panels has 1.7 times the speed of one of a single panel (AVX2, Zen 3).
template <int kRows>
constexpr int kBlockPanels = std::clamp(kAccumulators / (kRows * kPanelVecs), 1, 4);

struct Operands {
  const float* a;
  Index lda;
  float* c;
  Index ldc;
  Index cols;
  Index k;
  Index panel_elems;  // from one panel to the next
  bool accumulate;
};

HWY_INLINE void load_c(const float* c, Index cols, float* edge, V* sums) {
  const float* from = c;
  if (cols < kPanelCols) {
    std::copy_n(c, cols, edge);
    from = edge;
  }
  UNROLL(4)
  for (int v = 0; v < kPanelVecs; ++v) sums[v] = hn::LoadU(D(), from + v * kLanes);
}

HWY_INLINE void store_c(const V* sums, Index cols, float* edge, float* c) {
  float* to = cols < kPanelCols ? edge : c;
  UNROLL(4)
  for (int v = 0; v < kPanelVecs; ++v) hn::StoreU(sums[v], D(), to + v * kLanes);
  if (cols < kPanelCols) std::copy_n(edge, cols, c);
}

// One k of float panels, or a pair of k of bf16 panels (a_odd is the second column of A).
template <int kRows, int kVecs>
HWY_INLINE void multiply_add(const Operands& args, Index kk, const V* b, V (&sums)[kRows][kVecs]) {
  UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const V a = hn::Set(D(), args.a[r * args.lda + kk]);
    UNROLL(8)
    for (int v = 0; v < kVecs; ++v) sums[r][v] = hn::MulAdd(a, b[v], sums[r][v]);
  }
}

template <int kRows, int kVecs>
HWY_INLINE void sum_over_k(const Operands& args, const float* panel, V (&sums)[kRows][kVecs]) {
  for (Index kk = 0; kk < args.k; ++kk) {
    V b[kVecs];
    UNROLL(8)
    for (int v = 0; v < kVecs; ++v)
      b[v] = hn::LoadU(D(),
                       panel + v / kPanelVecs * args.panel_elems + kk * kRowElems + v % kPanelVecs * kLanes);
    multiply_add<kRows, kVecs>(args, kk, b, sums);
  }
}

template <int kRows, int kVecs>
HWY_INLINE void sum_over_k(const Operands& args, const bf16* panel, V (&sums)[kRows][kVecs]) {
  const DU du;
  const auto high_half = hn::Set(du, 0xffff0000u);
  for (Index kk = 0; kk < args.k; kk += 2) {
    V even[kVecs], odd[kVecs];
    UNROLL(8)
    for (int v = 0; v < kVecs; ++v) {
      const bf16* from =
          panel + v / kPanelVecs * args.panel_elems + kk * kPanelCols + v % kPanelVecs * 2 * kLanes;
      const auto pair = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
      even[v] = hn::BitCast(D(), hn::ShiftLeft<16>(pair));
      odd[v] = hn::BitCast(D(), hn::And(pair, high_half));
    }
    multiply_add<kRows, kVecs>(args, kk, even, sums);
    if (kk + 1 < args.k) multiply_add<kRows, kVecs>(args, kk + 1, odd, sums);
  }
}

// C [kRows, kPanels panels] (+)= A B over one stretch of k. What it reads and writes is announced by
// product().
template <int kRows, int kPanels, class T>
__attribute__((no_sanitize("address", "undefined"))) void block(const Operands& args, const T* panel) {
  constexpr int kVecs = kPanels * kPanelVecs;
  V sums[kRows][kVecs];
  float edge[kPanelCols] = {};
  UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    UNROLL(4)
    for (int p = 0; p < kPanels; ++p) {
      if (args.accumulate) {
        load_c(args.c + r * args.ldc + p * kPanelCols, args.cols - p * kPanelCols, edge,
               &sums[r][p * kPanelVecs]);
      } else {
        UNROLL(4)
        for (int v = 0; v < kPanelVecs; ++v) sums[r][p * kPanelVecs + v] = hn::Zero(D());
      }
    }
  }
  sum_over_k<kRows, kVecs>(args, panel, sums);
  UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    UNROLL(4)
    for (int p = 0; p < kPanels; ++p)
      store_c(&sums[r][p * kPanelVecs], args.cols - p * kPanelCols, edge,
              args.c + r * args.ldc + p * kPanelCols);
  }
}

template <int kRows, class T>
void row_block(Operands args, const T* packed, Index n) {
  constexpr int kPanels = kBlockPanels<kRows>;
  float* c = args.c;
  Index num_panels = 0;
  for (Index j = 0; j < n; j += num_panels * kPanelCols) {
    num_panels = n - j > (kPanels - 1) * kPanelCols ? kPanels : 1;
    args.c = c + j;
    args.cols = std::min(n - j, num_panels * kPanelCols);
    const T* panel = packed + j / kPanelCols * args.panel_elems;
    if (num_panels == kPanels)
      block<kRows, kPanels>(args, panel);
    else
      block<kRows, 1>(args, panel);
  }
}

// Rows [kRows, depth] of A as floats: float in place, bf16 widened into `wide`.
template <int kRows>
const float* widen(const float* a, Index, Index, float*) {
  return a;
}
template <int kRows>
const float* widen(const bf16* a, Index lda, Index depth, float* wide) {
  for (int r = 0; r < kRows; ++r) {
    Index kk = 0;
    for (; kk + kLanes <= depth; kk += kLanes) store(load(a + r * lda + kk), wide + r * kDepth + kk);
    for (; kk < depth; ++kk) wide[r * kDepth + kk] = static_cast<float>(a[r * lda + kk]);
  }
  return wide;
}

template <int kRows, class T>
void rows_of(const T* a, Index lda, const T* packed, float* c, Index ldc, Index n, Index k, bool accumulate) {
  HWY_ALIGN float wide[kRows * kDepth];
  const Index panel_elems = packed_elements<T>(k, kPanelCols);
  for (Index k0 = 0; k0 < k; k0 += kDepth) {
    const Index depth = std::min(k - k0, kDepth);
    const Operands args{.a = widen<kRows>(a + k0, lda, depth, wide),
                        .lda = sizeof(T) == sizeof(float) ? lda : kDepth,
                        .c = c,
                        .ldc = ldc,
                        .cols = 0,
                        .k = depth,
                        .panel_elems = panel_elems,
                        .accumulate = accumulate || k0 > 0};
    row_block<kRows>(args, packed + k0 * kPanelCols, n);
  }
}

// product()'s operands, to AddressSanitizer. (That C is read where it is added to, too, its writing covers.)
template <class T>
void announce(const T* a, Index lda, const T* packed, float* c, Index ldc, Index m, Index n, Index k) {
  const auto bytes = [](Index count, size_t each) { return static_cast<size_t>(count) * each; };
  for (Index i = 0; i < m; ++i) {
    will_read(a + i * lda, bytes(k, sizeof(T)));
    will_write(c + i * ldc, bytes(n, sizeof(float)));
  }
  if (m > 0) will_read(packed, bytes(packed_elements<T>(k, n), sizeof(T)));
}

template <class T>
void product(const T* a, Index lda, const T* packed, float* c, Index ldc, Index m, Index n, Index k,
             Accumulate accumulate) {
  const bool add = accumulate == Accumulate::kYes;
  announce(a, lda, packed, c, ldc, m, n, k);
  Index i = 0;
  for (; i + kBlockRows <= m; i += kBlockRows)
    rows_of<kBlockRows>(a + i * lda, lda, packed, c + i * ldc, ldc, n, k, add);
  for (; i + 2 <= m; i += 2) rows_of<2>(a + i * lda, lda, packed, c + i * ldc, ldc, n, k, add);
  if (i < m) rows_of<1>(a + i * lda, lda, packed, c + i * ldc, ldc, n, k, add);
}

// Two rows of bf16 B become one row of pairs.
void pack(const bf16* b, Index ldb, Index k, Index n, bf16* packed) {
  const DU du;
  const hn::Rebind<uint16_t, DU> d16;
  const Index depth = packed_elements<bf16>(k, kPanelCols) / kPanelCols;
  const auto* rows = reinterpret_cast<const uint16_t*>(b);
  for (Index j = 0; j < n; j += kPanelCols) {
    bf16* panel = packed + j * depth;
    const Index cols = std::min(n - j, kPanelCols);
    Index kk = 0;
    for (; cols == kPanelCols && kk + 2 <= k; kk += 2) {
      UNROLL(4)
      for (int v = 0; v < kPanelVecs; ++v) {
        const uint16_t* from = rows + kk * ldb + j + v * kLanes;
        const auto low = hn::PromoteTo(du, hn::LoadU(d16, from));
        const auto high = hn::PromoteTo(du, hn::LoadU(d16, from + ldb));
        hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), du,
                   reinterpret_cast<uint32_t*>(panel + kk * kPanelCols + v * 2 * kLanes));
      }
    }
    std::memset(static_cast<void*>(panel + kk * kPanelCols), 0,
                static_cast<size_t>((depth - kk) * kPanelCols * 2));
    for (; kk < k; ++kk)
      for (Index col = 0; col < cols; ++col)
        panel[kk / 2 * 2 * kPanelCols + col * 2 + kk % 2] = b[kk * ldb + j + col];
  }
}

void pack(const float* b, Index ldb, Index k, Index n, float* packed) {
  for (Index j = 0; j < n; j += kPanelCols) {
    float* panel = packed + j * k;
    const Index cols = std::min(n - j, kPanelCols);
    for (Index kk = 0; kk < k; ++kk) {
      std::copy_n(b + kk * ldb + j, cols, panel + kk * kPanelCols);
      std::fill_n(panel + kk * kPanelCols + cols, kPanelCols - cols, 0.0f);
    }
  }
}

// 4 x 4 words: word r of to's row i <- word i of from's row r. Rows of from are `stride` elements apart.
template <class T>
HWY_INLINE void transpose_4x4(const T* from, Index stride, uint32_t* to) {
  const hn::Full128<uint32_t> d;
  const hn::Full128<uint64_t> d64;
  const auto row = [&](Index r) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(from + r * stride));
  };
  const auto r0 = row(0);
  const auto r1 = row(1);
  const auto r2 = row(2);
  const auto r3 = row(3);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, to + kPanelCols);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, to + 2 * kPanelCols);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, to + 3 * kPanelCols);
}

// A panel is a transposed matrix of 32-bit words: one float, or one pair of bf16.
template <class T>
void pack_transposed(const T* bt, Index ldb, Index k, Index n, T* packed) {
  constexpr Index kWordElems = 4 / sizeof(T);
  const Index depth = packed_elements<T>(k, kPanelCols) / kPanelCols;
  const Index whole = k / (4 * kWordElems) * 4 * kWordElems;
  for (Index j = 0; j < n; j += kPanelCols) {
    T* panel = packed + j * depth;
    const Index cols = std::min(n - j, kPanelCols);
    if (cols < kPanelCols || whole < depth)
      std::memset(static_cast<void*>(panel), 0, static_cast<size_t>(depth * kPanelCols) * sizeof(T));
    const Index whole_cols = cols / 4 * 4;
    for (Index kk = 0; kk < whole; kk += 4 * kWordElems)
      for (Index col = 0; col < whole_cols; col += 4)
        transpose_4x4(bt + (j + col) * ldb + kk, ldb,
                      reinterpret_cast<uint32_t*>(panel) + kk / kWordElems * kPanelCols + col);
    for (Index col = 0; col < cols; ++col)
      for (Index kk = col < whole_cols ? whole : 0; kk < k; ++kk)
        panel[kk / kWordElems * kPanelCols * kWordElems + col * kWordElems + kk % kWordElems] =
            bt[(j + col) * ldb + kk];
  }
}

template <class T>
void round_rows_of(const float* c, Index ldc, const float* bias, T* out, Index ldo, Index m, Index n) {
  for (Index i = 0; i < m; ++i, c += ldc, out += ldo) {
    Index j = 0;
    for (; j + kLanes <= n; j += kLanes) {
      const V sum = load(c + j);
      store(bias != nullptr ? hn::Add(sum, load(bias + j)) : sum, out + j);
    }
    for (; j < n; ++j) out[j] = T(bias != nullptr ? c[j] + bias[j] : c[j]);
  }
}

template <class T>
void swiglu_rows_of(const float* c, Index ldc, T* out, Index ldo, Index m, Index n) {
  const auto vector = [&](const float* sums, Index j) HWY_ATTR {  // of kLanes of out
    const Vec gate = rounded(load(sums + j), T()), up = rounded(load(sums + kPanelCols + j), T());
    return hn::Mul(silu(gate), up);
  };
  for (Index i = 0; i < m; ++i, c += ldc, out += ldo)
    for (Index first = 0; first < n; first += kPanelCols)
      for_each_vector(std::min(kPanelCols, n - first), [&](Index j, auto extent) HWY_ATTR {
        store(vector(c + 2 * first, j), out + first + j, extent);
      });
}

template <class T>
TypedKernels<T> kernels_of() {
  return {.gemm = product<T>,
          .pack_b = pack,
          .pack_b_transposed = pack_transposed<T>,
          .round_rows = round_rows_of<T>,
          .swiglu_rows = swiglu_rows_of<T>};
}

GemmKernels kernels() {
  return {.name = {}, .vector_isa = {}, .for_bf16 = kernels_of<bf16>(), .for_float = kernels_of<float>()};
}

}  // namespace
}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {

std::string_view isa_of_target(int64_t target) {
  switch (target) {
    case HWY_AVX3_DL:
    case HWY_AVX3:
      return "avx512";
    case HWY_AVX2:
      return "avx2";
    case HWY_SSE4:
      return "sse4";
    case HWY_SSSE3:
      return "ssse3";
    case HWY_NEON:
      return "neon";
    default:
      return "generic";
  }
}

}  // namespace

HWY_EXPORT(kernels);

std::vector<GemmKernels> portable_kernels() {
  std::vector<GemmKernels> list;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::GetChosenTarget().Update(target);  // for the call below only
    list.push_back(HWY_DYNAMIC_DISPATCH(kernels)());
    list.back().name = list.back().vector_isa = isa_of_target(target);
    list.back().simd_target = target;
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return list;
}

void use_simd_target(int64_t target) { hwy::DisableTargets(~target); }

}  // namespace longspan::ops::cpu
#endif
