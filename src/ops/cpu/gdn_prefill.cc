// The delta rule for a prompt: MODEL 2.8 in 64-token chunks on the absolute grid. Written so that the raw q
// and k (already in the model dtype) stay the left sides of all large products, exact, and every factor
// (norms, gates, decays) is applied to fp32 rows:
//   [K; Q] K^T, [K; Q] S;   R = beta (V - e^G |k|^-1 K S);   (I + A) V' = R, solved forward;
//   O = e^G Q S + P V';   S <- e^G_last S + K^T (e^(G_last - G) |k|^-1 V')
// with A = beta (K K^T) . D below the diagonal and P = (Q K^T) . D on and below it. In bf16 the right sides,
// S and V', go in as two bf16 parts (hi + lo, 16 bits of mantissa), which leaves the op as good as fp32.
// About 10.5 Mflop a chunk and head at 128 x 128 (twice the large ones in bf16).
#include "ops/cpu/gdn.h"
#include "ops/cpu/tile_gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gdn_prefill.cc"
#include <hwy/foreach_target.h>

#include "ops/cpu/gdn_rows.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// The element type of products, and how many of them carry one fp32 number.
template <class T>
using ProductOf = std::conditional_t<std::is_same_v<T, bf16>, bf16, float>;
template <class P>
inline constexpr Index kParts = std::is_same_v<P, bf16> ? 2 : 1;

// Hands out pieces of a scratch buffer, each on a cache line of its own; on nullptr it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  template <class E>
  E* take(Index count) {
    char* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(E) + 63) / 64 * 64;
    return reinterpret_cast<E*>(piece);
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// Scratch of one task; C = 64 tokens. About 330 KB in bf16 at 128 x 128: it lives in L2.
template <class P>
struct ChunkScratch {
  ChunkScratch(Carver& carver, Index k_dim, Index v_dim)
      : kq(carver.take<P>(2 * kGdnChunk * k_dim)),
        k_packed(carver.take<P>(packed_elements<P>(k_dim, kGdnChunk))),
        k_transposed(carver.take<P>(k_dim * kGdnChunk)),
        kq_k(carver.take<float>(2 * kGdnChunk * kGdnChunk)),
        inv_k(carver.take<float>(kGdnChunk)),
        inv_q(carver.take<float>(kGdnChunk)),
        a(carver.take<float>(kGdnChunk * kGdnChunk)),
        p(carver.take<P>(kParts<P> * kGdnChunk * kGdnChunk)),
        s_packed(carver.take<P>(kParts<P> * packed_elements<P>(k_dim, v_dim))),
        kq_s(carver.take<float>(2 * kGdnChunk * v_dim)),
        v_new(carver.take<float>(kGdnChunk * v_dim)),
        v_packed(carver.take<P>(kParts<P> * packed_elements<P>(kGdnChunk, v_dim))) {}

  // Of the key head:
  P* kq;            // [2 * num_rows, k_dim]: raw k, then raw q
  P* k_packed;      // K^T, packed
  P* k_transposed;  // [k_dim, C], zeros from num_rows on
  float* kq_k;      // [2 * num_rows, C]: K K^T, then Q K^T
  float* inv_k;     // [C]: 1 / |k|
  float* inv_q;     // [C]: k_dim^-0.5 / |q|
  // Of the value head:
  float* a;      // [C, C], below the diagonal
  P* p;          // [kParts, C, C]
  P* s_packed;   // [kParts, packed S]
  float* kq_s;   // [2 * num_rows, v_dim]: K S, then Q S, which becomes O
  float* v_new;  // [C, v_dim]: R, which becomes V'
  P* v_packed;   // [kParts, packed V']
};

// A chunk: num_rows <= 64 tokens from token row `row` on.
struct Chunk {
  Index row = 0;
  Index num_rows = 0;
};

// Decays of one value head over a chunk. G reaches -1820, and small differences of it matter: it is summed in
// fp64 and kept as two floats, so that hi_i - hi_j is exact where the result counts.
struct Decays {
  alignas(64) float g_hi[kGdnChunk];
  alignas(64) float g_lo[kGdnChunk];
  alignas(64) float from_start[kGdnChunk];  // e^G_i
  alignas(64) float to_end[kGdnChunk];      // e^(G_last - G_i)
};

HWY_INLINE Vec difference(const Decays& decays, Index i, Index j) {
  return hn::Add(hn::Sub(set(decays.g_hi[i]), load(decays.g_hi + j)),
                 hn::Sub(set(decays.g_lo[i]), load(decays.g_lo + j)));
}

inline void sum_decays(const float* g, Index num_rows, Decays& decays) {
  double sum = 0;
  for (Index i = 0; i < kGdnChunk; ++i) {
    if (i < num_rows) sum += g[i];
    decays.g_hi[i] = static_cast<float>(sum);
    decays.g_lo[i] = static_cast<float>(sum - decays.g_hi[i]);
  }
  for (Index i = 0; i < kGdnChunk; i += lanes()) {
    store(exp(load(decays.g_hi + i)), decays.from_start + i);
    store(exp(difference(decays, kGdnChunk - 1, i)), decays.to_end + i);
  }
}

// kq <- rows of k and q, inv_k and inv_q their norms; packs K^T.
template <class T, class P>
void load_keys(const GatedDelta& args, const Chunk& chunk, Index key_head, const ChunkScratch<P>& scratch) {
  const Index k_dim = args.state.k_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(k_dim));
  for (Index i = 0; i < chunk.num_rows; ++i) {
    P* k = scratch.kq + i * k_dim;
    P* q = scratch.kq + (chunk.num_rows + i) * k_dim;
    const T* k_from = head_row<const T>(args.k, chunk.row + i, key_head);
    const T* q_from = head_row<const T>(args.q, chunk.row + i, key_head);
    for (Index j = 0; j < k_dim; j += lanes()) {
      store(load(k_from + j, k_dim - j), k + j, k_dim - j);
      store(load(q_from + j, k_dim - j), q + j, k_dim - j);
    }
    scratch.inv_k[i] = inverse_norm(k, k_dim);
    scratch.inv_q[i] = inverse_norm(q, k_dim) * scale;
  }
  pack_b_transposed(scratch.kq, k_dim, k_dim, chunk.num_rows, scratch.k_packed);
  std::fill_n(scratch.k_transposed, k_dim * kGdnChunk, P(0.0f));
  for (Index j = 0; j < k_dim; ++j)
    for (Index i = 0; i < chunk.num_rows; ++i)
      scratch.k_transposed[j * kGdnChunk + i] = scratch.kq[i * k_dim + j];
  gemm(scratch.kq, k_dim, scratch.k_packed, scratch.kq_k, kGdnChunk, 2 * chunk.num_rows, chunk.num_rows,
       k_dim, Accumulate::kNo);
}

// parts[0] + parts[1] = value as two bf16, or parts[0] = value.
template <class P>
HWY_INLINE void store_parts(Vec value, P* parts, Index part_stride) {
  store(value, parts);
  if constexpr (kParts<P> == 2) store(hn::Sub(value, load(parts)), parts + part_stride);
}

// A and P of one value head.
template <class P>
void decay_products(const Chunk& chunk, const Gates& gates, const Decays& decays,
                    const ChunkScratch<P>& scratch) {
  const Vec zero = hn::Zero(F32());
  for (Index i = 0; i < chunk.num_rows; ++i) {
    const float* kk = scratch.kq_k + i * kGdnChunk;
    const float* qk = scratch.kq_k + (chunk.num_rows + i) * kGdnChunk;
    const Vec row = set(static_cast<float>(i));
    const Vec a_scale = set(gates.beta[i] * scratch.inv_k[i]);
    const Vec p_scale = set(scratch.inv_q[i]);
    for (Index j = 0; j < chunk.num_rows; j += lanes()) {
      P* p = scratch.p + i * kGdnChunk + j;
      if (j > i) {
        store_parts(zero, p, kGdnChunk * kGdnChunk);
        continue;
      }
      // Selected, not multiplied: above the diagonal e^(G_i - G_j) may be infinite.
      const Vec col = hn::Iota(F32(), static_cast<float>(j));
      const Vec factor = hn::Mul(exp(difference(decays, i, j)), load(scratch.inv_k + j));
      const Vec a = hn::Mul(hn::Mul(load(kk + j), a_scale), factor);
      const Vec p_value = hn::Mul(hn::Mul(load(qk + j), p_scale), factor);
      store(hn::IfThenElseZero(hn::Lt(col, row), a), scratch.a + i * kGdnChunk + j);
      store_parts(hn::IfThenElseZero(hn::Le(col, row), p_value), p, kGdnChunk * kGdnChunk);
    }
  }
}

// packed <- diag(row_scale) B for the right side of a product, all parts; row_scale nullptr: ones.
inline void pack_parts(const float* b, Index k, Index n, const float* row_scale, float* packed) {
  for (Index j0 = 0; j0 < n; j0 += kPanelCols)
    for (Index kk = 0; kk < k; ++kk) {
      const Vec scale = set(row_scale == nullptr ? 1.0f : row_scale[kk]);
      for (Index j = j0; j < j0 + kPanelCols; j += lanes(), packed += lanes())
        store(hn::Mul(load(b + kk * n + j, std::max<Index>(0, n - j)), scale), packed);
    }
}
inline void pack_parts(const float* b, Index k, Index n, const float* row_scale, bf16* packed) {
  const hn::Rebind<uint32_t, F32> du32;
  const auto high_half = hn::Set(du32, 0xffff0000u);
  const auto round = hn::Set(du32, 0x8000u);
  uint32_t* hi = reinterpret_cast<uint32_t*>(packed);
  uint32_t* lo = reinterpret_cast<uint32_t*>(packed + packed_elements<bf16>(k, n));
  for (Index j0 = 0; j0 < n; j0 += kPanelCols) {
    for (Index kk = 0; kk < k; kk += 2)
      for (Index j = j0; j < j0 + kPanelCols; j += lanes(), hi += lanes(), lo += lanes()) {
        const Index count = std::max<Index>(0, n - j);
        Vec x0 = load(b + kk * n + j, count);
        Vec x1 = kk + 1 < k ? load(b + (kk + 1) * n + j, count) : hn::Zero(F32());
        if (row_scale != nullptr) {
          x0 = hn::Mul(x0, set(row_scale[kk]));
          x1 = hn::Mul(x1, set(kk + 1 < k ? row_scale[kk + 1] : 0.0f));
        }
        // hi is cut, so that x - hi is exact; lo is rounded.
        const auto hi0 = hn::And(hn::BitCast(du32, x0), high_half);
        const auto hi1 = hn::And(hn::BitCast(du32, x1), high_half);
        const auto lo0 = hn::Add(hn::BitCast(du32, hn::Sub(x0, hn::BitCast(F32(), hi0))), round);
        const auto lo1 = hn::Add(hn::BitCast(du32, hn::Sub(x1, hn::BitCast(F32(), hi1))), round);
        hn::StoreU(hn::Or(hn::ShiftRight<16>(hi0), hi1), du32, hi);
        hn::StoreU(hn::Or(hn::ShiftRight<16>(lo0), hn::And(lo1, high_half)), du32, lo);
      }
    const Index depth = packed_elements<bf16>(k, kPanelCols) / kPanelCols;
    const Index padding = (depth - (k + 1) / 2 * 2) / 2 * kPanelCols;
    std::fill_n(hi, padding, 0u);
    std::fill_n(lo, padding, 0u);
    hi += padding;
    lo += padding;
  }
}

// c (+)= a B for a right side in parts.
template <class P>
void multiply(const P* a, Index lda, const P* packed, float* c, Index m, Index n, Index k,
              Accumulate accumulate) {
  for (Index part = 0; part < kParts<P>; ++part) {
    gemm(a, lda, packed + part * packed_elements<P>(k, n), c, n, m, n, k, accumulate);
    accumulate = Accumulate::kYes;
  }
}

// v_new <- R, and kq_s's Q S rows <- e^G Q S.
template <class T, class P>
void scale_state_products(const GatedDelta& args, const Chunk& chunk, Index head, const Gates& gates,
                          const Decays& decays, const ChunkScratch<P>& scratch) {
  const Index v_dim = args.state.v_dim;
  for (Index i = 0; i < chunk.num_rows; ++i) {
    const T* v = head_row<const T>(args.v, chunk.row + i, head);
    const float* k_s = scratch.kq_s + i * v_dim;
    float* q_s = scratch.kq_s + (chunk.num_rows + i) * v_dim;
    float* r = scratch.v_new + i * v_dim;
    const Vec beta = set(gates.beta[i]);
    const Vec k_scale = set(decays.from_start[i] * scratch.inv_k[i]);
    const Vec q_scale = set(decays.from_start[i] * scratch.inv_q[i]);
    for (Index j = 0; j < v_dim; j += lanes()) {
      const Index count = v_dim - j;
      const Vec error = hn::NegMulAdd(k_scale, load(k_s + j, count), load(v + j, count));
      store(hn::Mul(beta, error), r + j, count);
      store(hn::Mul(q_scale, load(q_s + j, count)), q_s + j, count);
    }
  }
}

// Columns col .. + kVectors vectors of (I + A) V' = R, in place, row by row.
template <Index kVectors>
void solve_strip(const float* a, Index num_rows, Index v_dim, float* v_new, Index col) {
  for (Index i = 1; i < num_rows; ++i) {
    Vec sum[kVectors];
    for (Index u = 0; u < kVectors; ++u) {
      const Index j = col + u * lanes();
      sum[u] = load(v_new + i * v_dim + j, v_dim - j);
    }
    for (Index s = 0; s < i; ++s)
      for (Index u = 0; u < kVectors; ++u) {
        const Index j = col + u * lanes();
        sum[u] = hn::NegMulAdd(set(a[i * kGdnChunk + s]), load(v_new + s * v_dim + j, v_dim - j), sum[u]);
      }
    for (Index u = 0; u < kVectors; ++u) {
      const Index j = col + u * lanes();
      store(sum[u], v_new + i * v_dim + j, v_dim - j);
    }
  }
}

inline void solve(const float* a, Index num_rows, Index v_dim, float* v_new) {
  constexpr Index kVectors = 8;
  Index col = 0;
  for (; col + kVectors * lanes() <= v_dim; col += kVectors * lanes())
    solve_strip<kVectors>(a, num_rows, v_dim, v_new, col);
  for (; col < v_dim; col += lanes()) solve_strip<1>(a, num_rows, v_dim, v_new, col);
}

inline void scale_in_place(float* x, Index n, float scale) {
  for (Index j = 0; j < n; j += lanes()) store(hn::Mul(load(x + j, n - j), set(scale)), x + j, n - j);
}

// One chunk of one value head; s is its state, f32 [k_dim, v_dim].
template <class T, class P>
void head_chunk(const GatedDelta& args, const Chunk& chunk, Index head, const ChunkScratch<P>& scratch,
                float* s) {
  const Index num_rows = chunk.num_rows, k_dim = args.state.k_dim, v_dim = args.state.v_dim;
  Gates gates;
  Decays decays;
  read_gates<T>(args, chunk.row, num_rows, head, gates);
  sum_decays(gates.g, num_rows, decays);
  decay_products(chunk, gates, decays, scratch);

  pack_parts(s, k_dim, v_dim, nullptr, scratch.s_packed);
  multiply(scratch.kq, k_dim, scratch.s_packed, scratch.kq_s, 2 * num_rows, v_dim, k_dim, Accumulate::kNo);
  scale_state_products<T>(args, chunk, head, gates, decays, scratch);
  solve(scratch.a, num_rows, v_dim, scratch.v_new);

  float* o = scratch.kq_s + num_rows * v_dim;
  pack_parts(scratch.v_new, num_rows, v_dim, nullptr, scratch.v_packed);
  multiply(scratch.p, kGdnChunk, scratch.v_packed, o, num_rows, v_dim, num_rows, Accumulate::kYes);
  if constexpr (kParts<P> == 2)  // P's low part: only the high part of V' is worth it
    gemm(scratch.p + kGdnChunk * kGdnChunk, kGdnChunk, scratch.v_packed, o, v_dim, num_rows, v_dim, num_rows,
         Accumulate::kYes);

  alignas(64) float v_scale[kGdnChunk] = {};
  for (Index i = 0; i < num_rows; ++i) v_scale[i] = decays.to_end[i] * scratch.inv_k[i];
  pack_parts(scratch.v_new, num_rows, v_dim, v_scale, scratch.v_packed);
  scale_in_place(s, k_dim * v_dim, decays.from_start[kGdnChunk - 1]);
  multiply(scratch.k_transposed, kGdnChunk, scratch.v_packed, s, k_dim, v_dim, num_rows, Accumulate::kYes);

  for (Index i = 0; i < num_rows; ++i)
    write_gated_norm(o + i * v_dim, head_row<const T>(args.z, chunk.row + i, head), args.norm.as<float>(),
                     args.eps, v_dim, head_row<T>(args.out, chunk.row + i, head));
}

template <class T>
void prefill_of(const GatedDelta& args, Index seq_idx, Index first_head, Index num_heads,
                void* scratch_base) {
  using P = ProductOf<T>;
  const StateCache& state = args.state;
  const Index state_elements = state.k_dim * state.v_dim;
  const SeqRows seq = seq_rows(args.seqs, seq_idx);
  const Index key_head = first_head / (state.num_v_heads / args.q.dim(1));
  const Index page = args.state_pages.as<int32_t>()[seq_idx];
  Carver carver(scratch_base);
  const ChunkScratch<P> scratch(carver, state.k_dim, state.v_dim);
  // The heads of one task lie side by side in the page.
  float* s = head_state(state, page, first_head);
  if (seq.context_len == 0) std::fill_n(s, num_heads * state_elements, 0.0f);
  const Index end = seq.context_len + seq.num_rows;
  for (Index token = seq.context_len; token < end;) {
    const Index chunk_end = std::min(end, (token / kGdnChunk + 1) * kGdnChunk);
    const Chunk chunk{seq.first_row + token - seq.context_len, chunk_end - token};
    load_keys<T>(args, chunk, key_head, scratch);
    for (Index i = 0; i < num_heads; ++i)
      head_chunk<T>(args, chunk, first_head + i, scratch, s + i * state_elements);
    token = chunk_end;
    for (const StateCheckpoint& checkpoint : args.checkpoints)
      if (checkpoint.seq_idx == seq_idx && checkpoint.num_tokens == token)
        std::copy_n(s, num_heads * state_elements, head_state(state, checkpoint.page, first_head));
  }
}

void prefill(const GatedDelta& args, Index seq_idx, Index first_head, Index num_heads, void* scratch) {
  dispatch_dtype(args.q.dtype,
                 [&]<class T>() { prefill_of<T>(args, seq_idx, first_head, num_heads, scratch); });
}

size_t scratch_bytes(const GatedDelta& args) {
  Carver carver(nullptr);
  dispatch_dtype(args.q.dtype,
                 [&]<class T>() { ChunkScratch<ProductOf<T>>(carver, args.state.k_dim, args.state.v_dim); });
  return carver.used();
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {
HWY_EXPORT(prefill);
HWY_EXPORT(scratch_bytes);
}  // namespace

size_t gdn_prefill_scratch_bytes(const GatedDelta& args) { return HWY_DYNAMIC_DISPATCH(scratch_bytes)(args); }

void gdn_prefill(const GatedDelta& args, Index seq_idx, Index first_head, Index num_heads, void* scratch) {
  HWY_DYNAMIC_DISPATCH(prefill)(args, seq_idx, first_head, num_heads, scratch);
}

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
