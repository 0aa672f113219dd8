// The delta rule for a prompt: MODEL 2.8 in 64-token chunks on the absolute grid. Written so that the raw q
// and k (already in the model dtype) stay the left sides of all large products, exact, and every factor
// (norms, gates, decays) is applied to fp32 rows:
//   [K; Q] K^T, [K; Q] S;   R = beta (V - e^G |k|^-1 K S);   (I + A) V' = R, solved forward;
//   O = e^G Q S + P V';   S <- e^G_last S + K^T (e^(G_last - G) |k|^-1 V')
// with A = beta (K K^T) . D below the diagonal and P = (Q K^T) . D on and below it. In bf16 the right sides,
// S and V', go in as two bf16 parts (hi + lo, 16 bits of mantissa). Against fp64 (128 x 128, 1024 tokens,
// decays from 0.9997 to G = -1820) that leaves 8e-6 relative before the last rounding, which itself
// is 1.7e-3. Saved lo parts cost: of P 1.3e-3, of P and V' in P V' 1.9e-3, of S 1.6e-3, of V' in S 1.7e-3, of
// all 2.7e-3. About 10.5 Mflop a chunk and head at 128 x 128; 44 us on one AMX core (2.9 GHz, warm L2), 14 of
// them products.
#include "ops/cpu/gdn.h"
#include "ops/cpu/tile_gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gdn_prefill.cc"
#include <hwy/foreach_target.h>

#include "ops/cpu/gdn_rows.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// The element type of products, and how an fp32 right side goes in: as kParts numbers, stacked along k, which
// meet kParts copies of the left side. P V' has an fp32 left side too: [P_hi P_hi P_lo] [V'_hi; V'_lo;
// V'_hi].
template <class T>
using ProductOf = std::conditional_t<std::is_same_v<T, bf16>, bf16, float>;
template <class P>
inline constexpr Index kParts = std::is_same_v<P, bf16> ? 2 : 1;
template <class P>
inline constexpr Index kCrossParts = std::is_same_v<P, bf16> ? 3 : 1;

constexpr Index round_up(Index x, Index multiple) { return (x + multiple - 1) / multiple * multiple; }

// Hands out pieces of a scratch buffer; on nullptr it only counts. Pieces start on cache lines, but not at
// the same offset of a 4 KB page: a load would wait for a store into another piece with equal low address
// bits.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  template <class E>
  E* take(Index count) {
    char* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(E) + 63) / 64 * 64 + kSkew;
    return reinterpret_cast<E*>(piece);
  }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kSkew = 5 * 64;

  char* base_;
  size_t used_ = 0;
};

// Scratch of one task; C = 64 tokens, Kp and Vp are k_dim and v_dim padded to whole vectors of any target.
// About 400 KB in bf16 at 128 x 128: it lives in L2.
template <class P>
struct ChunkScratch {
  ChunkScratch(Carver& carver, Index k_dim, Index v_dim)
      : k_width(round_up(k_dim, kPadding)),
        v_width(round_up(v_dim, kPanelCols)),
        kq(carver.take<P>(2 * kGdnChunk * kParts<P> * k_width)),
        k_packed(carver.take<P>(packed_elements<P>(k_width, kGdnChunk))),
        k_transposed(carver.take<P>(k_width * kParts<P> * kGdnChunk)),
        kq_k(carver.take<float>(2 * kGdnChunk * kGdnChunk)),
        inv_k(carver.take<float>(kGdnChunk)),
        inv_q(carver.take<float>(kGdnChunk)),
        a(carver.take<float>(kGdnChunk * kGdnChunk)),
        p(carver.take<P>(kGdnChunk * kCrossParts<P> * kGdnChunk)),
        s_packed(carver.take<P>(packed_elements<P>(kParts<P> * k_width, v_dim))),
        kq_s(carver.take<float>(2 * kGdnChunk * v_width)),
        v_new(carver.take<float>(kGdnChunk * v_width)),
        v_packed(carver.take<P>(packed_elements<P>(kCrossParts<P> * kGdnChunk, v_dim))) {}

  static constexpr Index kPadding = 32;
  Index k_width;  // Kp
  Index v_width;  // Vp
  // Of the key head:
  P* kq;            // [2 * num_rows, kParts, Kp]: raw k, then raw q
  P* k_packed;      // K^T [Kp, num_rows], packed
  P* k_transposed;  // [Kp, kParts, C], zeros from num_rows on
  float* kq_k;      // [2 * num_rows, C]: K K^T, then Q K^T
  float* inv_k;     // [C]: 1 / |k|
  float* inv_q;     // [C]: k_dim^-0.5 / |q|
  // Of the value head:
  float* a;      // [C, C], below the diagonal
  P* p;          // [C, kCrossParts, C]
  P* s_packed;   // S [kParts * Kp, v_dim], packed
  float* kq_s;   // [2 * num_rows, Vp]: K S, then Q S, which becomes O
  float* v_new;  // [C, Vp]: R, which becomes V'
  P* v_packed;   // V' [kCrossParts or kParts * C, v_dim], packed
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

// to[part] <- a row of q or k, padded with zeros, for every part (P holds T's values exactly). Returns
// |row|^2.
template <class T, class P>
float load_key_row(const T* from, Index k_dim, Index k_width, P* to) {
  Vec sum = hn::Zero(F32());
  Index j = 0;
  const auto add = [&](Vec x) HWY_ATTR {
    for (Index part = 0; part < kParts<P>; ++part) store_exact(x, to + part * k_width + j);
    sum = hn::MulAdd(x, x, sum);
  };
  for (; j + lanes() <= k_dim; j += lanes()) add(load(from + j));
  if (j < k_dim) {
    add(load(from + j, Part{k_dim - j}));
    j += lanes();
  }
  for (; j < k_width; j += lanes()) add(hn::Zero(F32()));
  return sum_of_lanes(sum);
}

// [k_width, kParts, C] from packed K^T: its panels hold 16 tokens of a pair of k rows, or of one.
inline void transpose_keys(const bf16* packed, Index k_width, Index num_rows, bf16* out) {
  const hn::CappedTag<uint32_t, kPanelCols> du32;
  const hn::Rebind<int32_t, decltype(du32)> di32;
  const hn::Rebind<uint16_t, decltype(du32)> du16;
  constexpr Index kRow = kParts<bf16> * kGdnChunk;
  const auto step = static_cast<Index>(hn::Lanes(du32));
  const auto write = [&](auto halves, bf16* to) HWY_ATTR {
    const auto tokens = hn::DemoteTo(du16, hn::BitCast(di32, halves));
    for (Index part = 0; part < kParts<bf16>; ++part)
      hn::StoreU(tokens, du16, reinterpret_cast<uint16_t*>(to + part * kGdnChunk));
  };
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(packed);
  for (Index token = 0; token < kGdnChunk; token += kPanelCols)
    for (Index kk = 0; kk < k_width; kk += 2)
      for (Index t = token; t < token + kPanelCols; t += step) {
        auto pair = hn::Zero(du32);
        if (token < num_rows) {
          pair = hn::LoadU(du32, pairs);
          pairs += step;
        }
        write(hn::And(pair, hn::Set(du32, 0xffff)), out + kk * kRow + t);
        write(hn::ShiftRight<16>(pair), out + (kk + 1) * kRow + t);
      }
}
inline void transpose_keys(const float* packed, Index k_width, Index num_rows, float* out) {
  for (Index token = 0; token < kGdnChunk; token += kPanelCols)
    for (Index kk = 0; kk < k_width; ++kk) {
      float* to = out + kk * kGdnChunk + token;
      if (token >= num_rows) {
        std::fill_n(to, kPanelCols, 0.0f);
      } else {
        std::copy_n(packed, kPanelCols, to);
        packed += kPanelCols;
      }
    }
}

// The key head's part: q and k rows, their norms, K K^T and Q K^T, K^T for the state.
template <class T, class P>
void load_keys(const GatedDelta& args, const Chunk& chunk, Index key_head, const ChunkScratch<P>& scratch) {
  const Index k_dim = args.state.k_dim, k_width = scratch.k_width, row_width = kParts<P> * k_width;
  const float scale = 1.0f / std::sqrt(static_cast<float>(k_dim));
  for (Index i = 0; i < chunk.num_rows; ++i) {
    if (chunk.row + i + kGdnChunk < args.q.dim(0)) {  // the next chunk's
      prefetch(head_row<const T>(args.k, chunk.row + i + kGdnChunk, key_head), k_dim);
      prefetch(head_row<const T>(args.q, chunk.row + i + kGdnChunk, key_head), k_dim);
    }
    scratch.inv_k[i] = load_key_row(head_row<const T>(args.k, chunk.row + i, key_head), k_dim, k_width,
                                    scratch.kq + i * row_width);
    scratch.inv_q[i] = load_key_row(head_row<const T>(args.q, chunk.row + i, key_head), k_dim, k_width,
                                    scratch.kq + (chunk.num_rows + i) * row_width);
  }
  for_each_vector(chunk.num_rows, [&](Index i, auto extent) HWY_ATTR {
    store(inverse_norm(load(scratch.inv_k + i, extent)), scratch.inv_k + i);
    store(hn::Mul(set(scale), inverse_norm(load(scratch.inv_q + i, extent))), scratch.inv_q + i);
  });
  pack_b_transposed(scratch.kq, row_width, k_width, chunk.num_rows, scratch.k_packed);
  transpose_keys(scratch.k_packed, k_width, chunk.num_rows, scratch.k_transposed);
  gemm(scratch.kq, row_width, scratch.k_packed, scratch.kq_k, kGdnChunk, 2 * chunk.num_rows, chunk.num_rows,
       k_width, Accumulate::kNo);
}

// One vector of P into its kCrossParts columns blocks, C apart.
HWY_INLINE void store_cross_parts(Vec value, float* to) { store(value, to); }
HWY_INLINE void store_cross_parts(Vec value, bf16* to) {
  store(value, to);
  store(value, to + kGdnChunk);
  store(hn::Sub(value, load(to)), to + 2 * kGdnChunk);
}

// A and P of one value head.
template <class P>
void decay_products(const Chunk& chunk, const Gates& gates, const Decays& decays,
                    const ChunkScratch<P>& scratch) {
  for (Index i = 0; i < chunk.num_rows; ++i) {
    const float* kk = scratch.kq_k + i * kGdnChunk;
    const float* qk = scratch.kq_k + (chunk.num_rows + i) * kGdnChunk;
    P* p = scratch.p + i * kCrossParts<P> * kGdnChunk;
    const Vec row = set(static_cast<float>(i));
    const Vec a_scale = set(gates.beta[i] * scratch.inv_k[i]);
    const Vec p_scale = set(scratch.inv_q[i]);
    Index j = 0;
    for (; j <= i; j += lanes()) {
      // Selected, not multiplied: above the diagonal e^(G_i - G_j) may be infinite.
      const Vec col = hn::Iota(F32(), static_cast<float>(j));
      const Vec factor = hn::Mul(exp(difference(decays, i, j)), load(scratch.inv_k + j));
      const Vec a = hn::Mul(hn::Mul(load(kk + j), a_scale), factor);
      const Vec p_value = hn::Mul(hn::Mul(load(qk + j), p_scale), factor);
      store(hn::IfThenElseZero(hn::Lt(col, row), a), scratch.a + i * kGdnChunk + j);
      store_cross_parts(hn::IfThenElseZero(hn::Le(col, row), p_value), p + j);
    }
    for (; j < kGdnChunk; j += lanes()) store_cross_parts(hn::Zero(F32()), p + j);
  }
}

// An fp32 matrix on its way to the right side of a product: diag(row_scale) B.
struct RightSide {
  const float* b;  // [k, n], rows ldb apart
  Index ldb;
  Index k;
  Index n;
  Index depth;                       // k padded with zero rows
  const float* row_scale = nullptr;  // [k], or ones
};

// Sixteen columns of row kk from column j0 on, a vector at a time; zeros outside.
HWY_INLINE Vec load_right(const RightSide& right, Index kk, Index j) {
  if (kk >= right.k || j >= right.n) return hn::Zero(F32());
  const float* from = right.b + kk * right.ldb + j;
  const Vec x = j + lanes() <= right.n ? load(from) : load(from, Part{right.n - j});
  return right.row_scale == nullptr ? x : hn::Mul(x, set(right.row_scale[kk]));
}

// Packs num_parts stacked parts: the matrix itself in fp32; hi, lo and again hi in bf16.
inline void pack_parts(const RightSide& right, Index num_parts, float* packed) {
  for (Index j0 = 0; j0 < right.n; j0 += kPanelCols)
    for (Index kk = 0; kk < right.depth; ++kk)
      for (Index j = j0; j < j0 + kPanelCols; j += lanes(), packed += lanes())
        store(load_right(right, kk, j), packed);
  static_cast<void>(num_parts);  // 1
}
inline void pack_parts(const RightSide& right, Index num_parts, bf16* packed) {
  const hn::Rebind<uint32_t, F32> du32;
  const auto high_half = hn::Set(du32, 0xffff0000u);
  const auto half = hn::Set(du32, 0x8000u);
  const Index part_pairs = right.depth / 2 * kPanelCols;  // of one panel
  uint32_t* pairs = reinterpret_cast<uint32_t*>(packed);
  for (Index j0 = 0; j0 < right.n; j0 += kPanelCols, pairs += num_parts * part_pairs)
    for (Index kk = 0; kk < right.depth; kk += 2)
      for (Index j = 0; j < kPanelCols; j += lanes()) {
        const Vec x0 = load_right(right, kk, j0 + j);
        const Vec x1 = load_right(right, kk + 1, j0 + j);
        // hi is cut, so that x - hi is exact; lo is rounded.
        const auto hi0 = hn::And(hn::BitCast(du32, x0), high_half);
        const auto hi1 = hn::And(hn::BitCast(du32, x1), high_half);
        const auto lo0 = hn::Add(hn::BitCast(du32, hn::Sub(x0, hn::BitCast(F32(), hi0))), half);
        const auto lo1 = hn::Add(hn::BitCast(du32, hn::Sub(x1, hn::BitCast(F32(), hi1))), half);
        const auto hi = hn::Or(hn::ShiftRight<16>(hi0), hi1);
        uint32_t* to = pairs + kk / 2 * kPanelCols + j;
        hn::StoreU(hi, du32, to);
        hn::StoreU(hn::Or(hn::ShiftRight<16>(lo0), hn::And(lo1, high_half)), du32, to + part_pairs);
        if (num_parts == 3) hn::StoreU(hi, du32, to + 2 * part_pairs);
      }
}

// v_new <- R, and kq_s's Q S rows <- e^G Q S.
template <class T, class P>
void scale_state_products(const GatedDelta& args, const Chunk& chunk, Index head, const Gates& gates,
                          const Decays& decays, const ChunkScratch<P>& scratch) {
  const Index v_dim = args.state.v_dim;
  for (Index i = 0; i < chunk.num_rows; ++i) {
    const T* v = head_row<const T>(args.v, chunk.row + i, head);
    const float* k_s = scratch.kq_s + i * scratch.v_width;
    float* q_s = scratch.kq_s + (chunk.num_rows + i) * scratch.v_width;
    float* r = scratch.v_new + i * scratch.v_width;
    const Vec beta = set(gates.beta[i]);
    const Vec k_scale = set(decays.from_start[i] * scratch.inv_k[i]);
    const Vec q_scale = set(decays.from_start[i] * scratch.inv_q[i]);
    for_each_vector(v_dim, [&](Index j, auto extent) HWY_ATTR {
      const Vec error = hn::NegMulAdd(k_scale, load(k_s + j), load(v + j, extent));
      const Vec o = hn::Mul(q_scale, load(q_s + j));
      store(hn::Mul(beta, error), r + j);
      store(o, q_s + j);
    });
  }
}

// As many strips of kVectors columns vectors as fit, from column col on: V' <- (I + A)^-1 R, in place, row by
// row. Returns the first column left.
template <Index kVectors>
Index solve_strips(const float* a, Index num_rows, Index v_width, float* v_new, Index col) {
  for (; col + kVectors * lanes() <= v_width; col += kVectors * lanes())
    for (Index i = 1; i < num_rows; ++i) {
      float* row = v_new + i * v_width + col;
      Vec sum[kVectors];
      HWY_UNROLL(8)  // asked for: at -O2 g++ would leave `sum` in memory
      for (Index u = 0; u < kVectors; ++u) sum[u] = load(row + u * lanes());
      for (Index s = 0; s < i; ++s) {
        const Vec factor = set(a[i * kGdnChunk + s]);
        const float* from = v_new + s * v_width + col;
        HWY_UNROLL(8)
        for (Index u = 0; u < kVectors; ++u) sum[u] = hn::NegMulAdd(factor, load(from + u * lanes()), sum[u]);
      }
      HWY_UNROLL(8)
      for (Index u = 0; u < kVectors; ++u) store(sum[u], row + u * lanes());
    }
  return col;
}

inline void solve(const float* a, Index num_rows, Index v_width, float* v_new) {
  Index col = solve_strips<8>(a, num_rows, v_width, v_new, 0);
  col = solve_strips<4>(a, num_rows, v_width, v_new, col);
  solve_strips<1>(a, num_rows, v_width, v_new, col);
}

inline void scale_in_place(float* x, Index n, float scale) {
  for_each_vector(n, [&](Index j, auto extent)
                         HWY_ATTR { store(hn::Mul(load(x + j, extent), set(scale)), x + j, extent); });
}

// One chunk of one value head; s is its state, f32 [k_dim, v_dim].
template <class T, class P>
void head_chunk(const GatedDelta& args, const Chunk& chunk, Index head, const ChunkScratch<P>& scratch,
                float* s) {
  const Index num_rows = chunk.num_rows, k_dim = args.state.k_dim, v_dim = args.state.v_dim;
  const Index k_width = scratch.k_width, v_width = scratch.v_width;
  Gates gates;
  Decays decays;
  read_gates<T>(args, chunk.row, num_rows, head, gates);
  for (Index i = 0; i < num_rows; ++i) {
    prefetch(head_row<const T>(args.v, chunk.row + i, head), v_dim);
    prefetch(head_row<const T>(args.z, chunk.row + i, head), v_dim);
  }
  sum_decays(gates.g, num_rows, decays);
  decay_products(chunk, gates, decays, scratch);

  pack_parts({s, v_dim, k_dim, v_dim, k_width}, kParts<P>, scratch.s_packed);
  gemm(scratch.kq, kParts<P> * k_width, scratch.s_packed, scratch.kq_s, v_width, 2 * num_rows, v_dim,
       kParts<P> * k_width, Accumulate::kNo);
  scale_state_products<T>(args, chunk, head, gates, decays, scratch);
  solve(scratch.a, num_rows, v_width, scratch.v_new);

  float* o = scratch.kq_s + num_rows * v_width;
  pack_parts({scratch.v_new, v_width, num_rows, v_dim, kGdnChunk}, kCrossParts<P>, scratch.v_packed);
  gemm(scratch.p, kCrossParts<P> * kGdnChunk, scratch.v_packed, o, v_width, num_rows, v_dim,
       kCrossParts<P> * kGdnChunk, Accumulate::kYes);

  alignas(64) float v_scale[kGdnChunk] = {};
  for (Index i = 0; i < num_rows; ++i) v_scale[i] = decays.to_end[i] * scratch.inv_k[i];
  pack_parts({scratch.v_new, v_width, num_rows, v_dim, kGdnChunk, v_scale}, kParts<P>, scratch.v_packed);
  scale_in_place(s, k_dim * v_dim, decays.from_start[kGdnChunk - 1]);
  gemm(scratch.k_transposed, kParts<P> * kGdnChunk, scratch.v_packed, s, v_dim, k_dim, v_dim,
       kParts<P> * kGdnChunk, Accumulate::kYes);

  for (Index i = 0; i < num_rows; ++i)
    write_gated_norm(o + i * v_width, head_row<const T>(args.z, chunk.row + i, head), args.norm.as<float>(),
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
