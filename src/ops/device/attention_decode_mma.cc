// Attention of one query token on matrix units: 16-bit floats, heads of 64, 128 or 256, rows in whole 16-byte
// words. A tile of 16 keys goes from memory to registers as it lies there; which element of a fragment is
// which key or dimension is free, as long as both factors agree. attention_decode.cc takes what this one does
// not.
#include "ops/device/decode_segments.h"
#include "ops/device/kernels.h"
#include "ops/device/mma.h"
#include "ops/device/paged_kv.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

constexpr int kHeads = 8;  // query heads a block takes: the columns of a product
constexpr int kTile = 16;  // keys

// Block (segment, kv head and part of its query heads, sequence). Each wave takes every kWaves-th tile of the
// segment: S = Q K^T with its heads as rows, then O^T += V^T P^T with its heads as columns, so that P stays
// in its lanes. The next tile's K is on its way during the softmax, its V during the next scores. With
// kWholePages a tile's page is looked up once, otherwise each row's: the same rows, so the same bits.
// Bound by memory: 2 * head_dim * sizeof(T) bytes a key and KV head.
template <class T, class E, int kDim, bool kWholePages>
struct MmaDecodeKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;
  static constexpr int kWaves = kThreads / kMmaWave;
  static constexpr size_t kSharedBytes =
      shared_bytes<float>(kWaves * kHeads * kDim) + 2 * shared_bytes<float>(kWaves * kHeads);
  using Word = Vec<uint32_t, 4>;                  // eight elements of T
  using Raw = Vec<uint32_t, 2 * sizeof(E)>;       // the same in the cache
  static constexpr int kKeyWords = kDim / 8 / 4;  // of a row of K in one of its four lanes

  Heads<T> q;                   // [num_tokens, num_q_heads, kDim]
  Matrix<int32_t> block_table;  // [num_seqs, max_pages]
  PagedKv<E> kv;
  SeqTable seqs;
  Partials partials;
  int first_seq;
  int parts;         // of a KV head's query heads
  float scale_log2;  // scale / ln 2

  struct Tile {
    Raw k[2][kKeyWords];  // of rows g and g + 8, words t, t + 4, ...
    Raw v[4][kDim / 64];  // of rows 2t, 2t + 1, 2t + 8, 2t + 9, words g, g + 8, ...
  };
  struct State {
    float max = -INFINITY;          // of head g
    float weight = 0.0f;            // of head g, this lane's keys
    FragmentC sum[kDim / 16] = {};  // columns: heads 2t and 2t + 1
  };

  DEVICE_FN void operator()() const {
    release_next();
    const int seq_idx = first_seq + block_idx().z;
    const int seq_len = seqs.seq_lens.get(seq_idx);
    const int tokens = segment_tokens(seq_len, partials.max_segments);
    const int begin = block_idx().x * tokens;
    const int end = begin + tokens < seq_len ? begin + tokens : seq_len;

    const int group_size = partials.num_q_heads / kv.num_kv_heads;
    const int kv_head = block_idx().y / parts;
    const int part = block_idx().y % parts;
    const int first_head = kv_head * group_size + part * kHeads;
    const int num_heads = group_size - part * kHeads < kHeads ? group_size - part * kHeads : kHeads;

    const Global<int32_t> table = block_table.row(seq_idx);
    int base = begin + thread_idx() / kMmaWave * kTile;
    Tile tile;
    const bool written =
        base + kTile < seq_len;  // by earlier steps; the last token's K and V are of this one
    if (base < end && written) load(table, kv_head, base, end, tile);
    await_previous();
    if (begin >= seq_len) return;
    Word query[kKeyWords];
    load_query(seqs.query_start_loc.get(seq_idx), first_head, num_heads, query);
    State state;
    if (base < end && !written) load(table, kv_head, base, end, tile);
    const float k_scale = kv.scale(0, kv_head), v_scale = kv.scale(1, kv_head);
    while (base < end) {
      const int next = base + kWaves * kTile;
      FragmentC score[2] = {};
      multiply_keys(query, tile, k_scale, score);
      if (next < end) load_keys(table, kv_head, next, end, tile);
      const FragmentB p = soften(base, end, score, state);
      multiply_values(tile, p, v_scale, state);
      if (next < end) load_values(table, kv_head, next, end, tile);
      base = next;
    }
    write(first_head, num_heads, state);
  }

  static DEVICE_FN int g() { return thread_idx() % kMmaWave / 4; }
  static DEVICE_FN int t() { return thread_idx() % 4; }

  DEVICE_FN void load_query(int row, int first_head, int num_heads, Word (&query)[kKeyWords]) const {
#pragma unroll
    for (int i = 0; i < kKeyWords; ++i) {
      query[i] = {};
      if (g() < num_heads) query[i] = word<Word>(q.row(row, first_head + g()), 4 * i + t());
    }
  }

  template <class W, class Element>
  static DEVICE_FN W word(Global<Element> row, int i) {
    return Global<W>{reinterpret_cast<W*>(row.data)}.get(i);
  }
  static DEVICE_FN Word expanded(const Vec<uint32_t, 4>& raw, float) { return raw; }
  static DEVICE_FN Word expanded(const Vec<uint32_t, 2>& raw, float scale) {
    return {{expand_pair<T>(raw.v[0], scale), expand_pair<T>(raw.v[0] >> 16, scale),
             expand_pair<T>(raw.v[1], scale), expand_pair<T>(raw.v[1] >> 16, scale)}};
  }

  // Row `i` of the tile; what lies behind `end` reads the last row and gets no weight.
  DEVICE_FN Global<E> row(Global<int32_t> table, int page, int plane, int kv_head, int base, int i,
                          int end) const {
    const int position = base + i < end ? base + i : end - 1;
    if (!kWholePages) page = table.get(position / kv.page_tokens);
    return kv.row(page, plane, position % kv.page_tokens, kv_head);
  }
  DEVICE_FN void load_keys(Global<int32_t> table, int kv_head, int base, int end, Tile& tile) const {
    const int page = kWholePages ? table.get(base / kv.page_tokens) : 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const Global<E> from = row(table, page, 0, kv_head, base, 8 * n + g(), end);
#pragma unroll
      for (int i = 0; i < kKeyWords; ++i) tile.k[n][i] = word<Raw>(from, 4 * i + t());
    }
  }
  DEVICE_FN void load_values(Global<int32_t> table, int kv_head, int base, int end, Tile& tile) const {
    const int page = kWholePages ? table.get(base / kv.page_tokens) : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Global<E> from = row(table, page, 1, kv_head, base, 8 * (j / 2) + 2 * t() + j % 2, end);
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) tile.v[j][i] = word<Raw>(from, 8 * i + g());
    }
  }

  DEVICE_FN void load(Global<int32_t> table, int kv_head, int base, int end, Tile& tile) const {
    load_keys(table, kv_head, base, end, tile);
    load_values(table, kv_head, base, end, tile);
  }

  // score = q k^T: rows heads, columns keys. A word is two steps of four elements a lane.
  DEVICE_FN void multiply_keys(const Word (&query)[kKeyWords], const Tile& tile, float scale,
                               FragmentC (&score)[2]) const {
#pragma unroll
    for (int i = 0; i < kKeyWords; ++i) {
      const Word keys[2] = {expanded(tile.k[0][i], scale), expanded(tile.k[1][i], scale)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const FragmentA a{{query[i].v[2 * half], 0, query[i].v[2 * half + 1], 0}};
#pragma unroll
        for (int n = 0; n < 2; ++n)
          multiply_add<T>(score[n], a, {{keys[n].v[2 * half], keys[n].v[2 * half + 1]}});
      }
    }
  }

  // Scores become probabilities, rounded to T; what was summed before shrinks. A tile has a key before `end`,
  // so its maximum is finite.
  DEVICE_FN FragmentB soften(int base, int end, FragmentC (&score)[2], State& state) const {
    float max = state.max;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = score[n].v[e];
        s = base + 8 * n + 2 * t() + e < end ? s * scale_log2 : -INFINITY;
        max = fmaxf(max, s);
      }
    max = group_max<4>(max);
    const float shrink = exp2f(state.max - max);
    state.max = max;
    state.weight *= shrink;
    FragmentB p;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float low = exp2f(score[n].v[0] - max), high = exp2f(score[n].v[1] - max);
      state.weight += low + high;
      p.v[n] = pack_pair<T>(low, high);
    }
    const float even = shuffle(shrink, 8 * t(), kMmaWave);
    const float odd = shuffle(shrink, 8 * t() + 4, kMmaWave);
#pragma unroll
    for (FragmentC& c : state.sum) {
      c.v[0] *= even;
      c.v[1] *= odd;
      c.v[2] *= even;
      c.v[3] *= odd;
    }
    return p;
  }

  // sum += v^T p^T. Of product (i, pair), rows g and g + 8 are dimensions 64 i + 8 g + 2 pair and the next.
  DEVICE_FN void multiply_values(const Tile& tile, const FragmentB& p, float scale, State& state) const {
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i) {
      const Word values[4] = {expanded(tile.v[0][i], scale), expanded(tile.v[1][i], scale),
                              expanded(tile.v[2][i], scale), expanded(tile.v[3][i], scale)};
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        FragmentA a;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t first = values[2 * j].v[pair], second = values[2 * j + 1].v[pair];
          a.v[2 * j] = (first & 0xffffu) | (second << 16);
          a.v[2 * j + 1] = (first >> 16) | (second & 0xffff0000u);
        }
        multiply_add<T>(state.sum[4 * i + pair], a, p);
      }
    }
  }

  // Joins the waves in order. One that had no tile has weight 0 and maximum -inf.
  DEVICE_FN void write(int first_head, int num_heads, const State& state) const {
    SharedPool pool;
    const Shared<float> sums = pool.take<float>(kWaves * kHeads * kDim);
    const Shared<float> maxima = pool.take<float>(kWaves * kHeads);
    const Shared<float> weights = pool.take<float>(kWaves * kHeads);
    const int wave = thread_idx() / kMmaWave;
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      const FragmentC& c = state.sum[n];
      const int d = n / 4 * 64 + g() * 8 + n % 4 * 2;
      sums.store<2>((wave * kHeads + 2 * t()) * kDim + d, Vec<float, 2>{{c.v[0], c.v[2]}});
      sums.store<2>((wave * kHeads + 2 * t() + 1) * kDim + d, Vec<float, 2>{{c.v[1], c.v[3]}});
    }
    const float weight = group_sum<4>(state.weight);
    if (t() == 0) {
      maxima.put(wave * kHeads + g(), state.max);
      weights.put(wave * kHeads + g(), weight);
    }
    block_sync();
    for (int i = thread_idx(); i < num_heads * (kDim / 4); i += kThreads) {
      const int h = i / (kDim / 4), d = i % (kDim / 4) * 4;
      float max = -INFINITY, total = 0.0f, shrink[kWaves];
#pragma unroll
      for (int w = 0; w < kWaves; ++w) max = fmaxf(max, maxima.get(w * kHeads + h));
#pragma unroll
      for (int w = 0; w < kWaves; ++w) {
        shrink[w] = exp2f(maxima.get(w * kHeads + h) - max);
        total += shrink[w] * weights.get(w * kHeads + h);
      }
      Vec<float, 4> sum{};
#pragma unroll
      for (int w = 0; w < kWaves; ++w) {
        const Vec<float, 4> part = sums.load<4>((w * kHeads + h) * kDim + d);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum.v[e] += shrink[w] * part.v[e];
      }
      const int64_t to = partials.row(block_idx().z, first_head + h, block_idx().x);
      partials.sums.store<4>(to * kDim + d, sum);
      if (d == 0) partials.norms.store<2>(2 * to, Vec<float, 2>{{max, total}});
    }
  }
};

template <class T, class E, int kDim>
void run(const Context& context, const Attention& args, const Partials& partials) {
  const int parts = ceil_div(args.q.dim(1) / args.kv.num_kv_heads, kHeads);
  const auto start = [&]<bool kWholePages>() {
    using Kernel = MmaDecodeKernel<T, E, kDim, kWholePages>;
    launch(context.device,
           {.name = kWholePages ? "attention_decode_mma_pages" : "attention_decode_mma",
            .grid = {partials.num_segments, static_cast<int>(args.kv.num_kv_heads) * parts,
                     static_cast<int>(args.num_seqs)},
            .shared_bytes = Kernel::kSharedBytes},
           Kernel{.q = heads<T>(args.q),
                  .block_table = matrix<int32_t>(args.block_table),
                  .kv = paged_kv<E>(args.kv),
                  .seqs = seq_table(args.seqs),
                  .partials = partials,
                  .first_seq = static_cast<int>(args.first_seq),
                  .parts = parts,
                  .scale_log2 = args.scale * 1.44269504f});
  };
  if (args.path == AttentionPath::kPageContiguousDecode)
    start.template operator()<true>();
  else
    start.template operator()<false>();
}

template <class T, class E>
bool run_any_dim(const Context& context, const Attention& args, const Partials& partials) {
  if (!paged_kv<E>(args.kv).words) return false;
  if (args.kv.head_dim == 64) return run<T, E, 64>(context, args, partials), true;
  if (args.kv.head_dim == 128) return run<T, E, 128>(context, args, partials), true;
  if (args.kv.head_dim == 256) return run<T, E, 256>(context, args, partials), true;
  return false;
}

template <class T>
bool run_any_cache(const Context& context, const Attention& args, const Partials& partials) {
  if (args.kv.dtype == DType::kF8E4M3) return run_any_dim<T, e4m3_t>(context, args, partials);
  return run_any_dim<T, T>(context, args, partials);
}

}  // namespace

bool attention_decode_mma(const Context& context, const Attention& args, const Partials& partials) {
  if (context.device.info().wave != kMmaWave || !takes_words(args.q)) return false;
  if (args.q.dtype == DType::kBF16) return run_any_cache<bf16_t>(context, args, partials);
  if (args.q.dtype == DType::kF16) return run_any_cache<f16_t>(context, args, partials);
  return false;
}

}  // namespace longspan::ops::device
