// Attention of one query token over its paged context. The context is cut into segments, each the work of
// one block for the query heads that share a KV head; a second kernel joins the segments in order. How a
// context is cut depends on its own length only.
#include "ops/device/activation.h"
#include "ops/device/decode_segments.h"
#include "ops/device/kernels.h"
#include "ops/device/kv_reader.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

constexpr int kHeads = 8;        // query heads a block takes
constexpr int kGroup = 32;       // lanes that share a key: each holds kVec elements of a row, or twice that
constexpr int kGroups = 4;       // of a block
constexpr int kKeys = 4;         // keys a group takes at once
constexpr int kMaxElements = 8;  // of a row in one lane

// Elements `first` .. of a row as floats, as many as T has in a word; zero from `size` on.
template <int kCount, class E, class Reader>
DEVICE_FN void load_row(Global<E> row, int first, int size, bool words, const Reader& read,
                        float (&out)[kCount]) {
  if (words && first < size) {
    const Vec<E, kCount> word = row.template load<kCount>(first);
#pragma unroll
    for (int e = 0; e < kCount; ++e) out[e] = read(word.v[e]);
    return;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) out[e] = first + e < size ? read(row.get(first + e)) : 0.0f;
}

// Block (segment, kv head and part of its query heads, sequence). Four groups of 32 lanes take four keys each
// in turn; a lane holds its elements of q, of each sum and of the rows in flight. With kWholePages the page
// of four keys is looked up once, otherwise each key's: the same rows in the same order, so the same bits.
template <class T, class E, bool kTable, bool kWholePages>
struct DecodeKernel {
  static constexpr int kThreads = kGroup * kGroups;
  static constexpr int kWords = kMaxElements / kVec<T>;  // of a row in one lane

  Heads<T> q;                   // [num_tokens, num_q_heads, head_dim]
  Matrix<int32_t> block_table;  // [num_seqs, max_pages]
  PagedKv<E> kv;
  SeqTable seqs;
  Partials partials;
  int first_seq;
  float scale_log2;  // scale / ln 2
  bool q_words;

  using Readers = KvReaders<T, E, kTable>;

  static constexpr int kState = kMaxElements * kGroup + 2;  // floats of a group's head in shared memory
  static constexpr size_t kSharedBytes = shared_bytes<float>(kGroups * kHeads * kState) + kTableBytes<kTable>;

  struct State {
    float max[kHeads];
    float weight[kHeads];
    float sum[kHeads][kMaxElements];
  };

  DEVICE_FN void operator()() const {
    const int seq_idx = first_seq + block_idx().z;
    const int seq_len = seqs.seq_lens.get(seq_idx);
    const int tokens = segment_tokens(seq_len, partials.max_segments);
    const int begin = block_idx().x * tokens;
    if (begin >= seq_len) return;
    const int end = begin + tokens < seq_len ? begin + tokens : seq_len;

    const int group_size = partials.num_q_heads / kv.num_kv_heads;
    const int parts = (group_size + kHeads - 1) / kHeads;
    const int kv_head = block_idx().y / parts;
    const int part = block_idx().y % parts;
    const int first_head = kv_head * group_size + part * kHeads;
    const int num_heads = group_size - part * kHeads < kHeads ? group_size - part * kHeads : kHeads;

    SharedPool pool;
    const Readers readers = kv_readers<T, E, kTable, kThreads>(kv, kv_head, pool);
    float queries[kHeads][kMaxElements];
    State state;
    load_queries(seqs.query_start_loc.get(seq_idx), first_head, num_heads, queries, state);
    const int group = thread_idx() / kGroup;
    // A wave may hold several groups: all stay together to the end, those without a key on the segment's
    // first.
    for (int base = begin; base < end; base += kGroups * kKeys)
      add_keys(block_table.row(seq_idx), kv_head, readers, base + group * kKeys, begin, end, num_heads,
               queries, state);
    write_partial(pool, first_head, num_heads, state);
  }

  DEVICE_FN int element(int w) const { return (thread_idx() % kGroup + w * kGroup) * kVec<T>; }

  DEVICE_FN void load_queries(int row, int first_head, int num_heads, float (&queries)[kHeads][kMaxElements],
                              State& state) const {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      state.max[h] = -INFINITY;
      state.weight[h] = 0.0f;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        float values[kVec<T>] = {};
        if (h < num_heads)
          load_row(q.row(row, first_head + h), element(w), kv.head_dim, q_words, KvReader<T, T, false>(),
                   values);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) {
          queries[h][w * kVec<T> + e] = values[e];
          state.sum[h][w * kVec<T> + e] = 0.0f;
        }
      }
    }
  }

  // Keys `key` .. `key` + kKeys - 1, those before `end`.
  DEVICE_FN void add_keys(Global<int32_t> table, int kv_head, const Readers& readers, int key, int begin,
                          int end, int num_heads, const float (&queries)[kHeads][kMaxElements],
                          State& state) const {
    float k[kKeys][kMaxElements], v[kKeys][kMaxElements];
    const int valid = key < end ? key : begin;
    int page = kWholePages ? table.get(valid / kv.page_tokens) : 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int position = key + i < end ? key + i : valid;
      if (!kWholePages) page = table.get(position / kv.page_tokens);
      const Global<E> k_row = kv.row(page, 0, position % kv.page_tokens, kv_head);
      const Global<E> v_row = kv.row(page, 1, position % kv.page_tokens, kv_head);
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        float values[kVec<T>];
        load_row(k_row, element(w), kv.head_dim, kv.words, readers.k, values);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) k[i][w * kVec<T> + e] = values[e];
        load_row(v_row, element(w), kv.head_dim, kv.words, readers.v, values);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) v[i][w * kVec<T> + e] = values[e];
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= num_heads) break;
      float score[kKeys];
      float max = state.max[h];
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        float dot = 0.0f;
#pragma unroll
        for (int e = 0; e < kMaxElements; ++e) dot += queries[h][e] * k[i][e];
        dot = group_sum<kGroup>(dot);
        score[i] = key + i < end ? dot * scale_log2 : -INFINITY;
        max = fmaxf(max, score[i]);
      }
      if (max == -INFINITY) continue;  // no key yet; the sums below would be NaN
      const float shrink = exp2f(state.max[h] - max);
      state.max[h] = max;
      state.weight[h] *= shrink;
#pragma unroll
      for (int e = 0; e < kMaxElements; ++e) state.sum[h][e] *= shrink;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        const float p = exp2f(score[i] - max);
        state.weight[h] += p;
#pragma unroll
        for (int e = 0; e < kMaxElements; ++e) state.sum[h][e] += p * v[i][e];
      }
    }
  }

  // Joins the groups in order. A group that had no key has weight 0 and maximum -inf.
  DEVICE_FN void write_partial(SharedPool pool, int first_head, int num_heads, const State& state) const {
    const Shared<float> all = pool.take<float>(kGroups * kHeads * kState);
    const int group = thread_idx() / kGroup;
    const int lane = thread_idx() % kGroup;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const Shared<float> mine = all + (group * kHeads + h) * kState;
#pragma unroll
      for (int w = 0; w < kWords; ++w)
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) mine.put(element(w) + e, state.sum[h][w * kVec<T> + e]);
      if (lane == 0) {
        mine.put(kState - 2, state.max[h]);
        mine.put(kState - 1, state.weight[h]);
      }
    }
    block_sync();
    for (int h = 0; h < num_heads; ++h) {
      float max = -INFINITY;
      for (int g = 0; g < kGroups; ++g) max = fmaxf(max, all.get((g * kHeads + h) * kState + kState - 2));
      float shrink[kGroups];
      float weight = 0.0f;
      for (int g = 0; g < kGroups; ++g) {
        shrink[g] = exp2f(all.get((g * kHeads + h) * kState + kState - 2) - max);
        weight += shrink[g] * all.get((g * kHeads + h) * kState + kState - 1);
      }
      const int64_t to = partials.row(block_idx().z, first_head + h, block_idx().x);
      for (int d = thread_idx(); d < kv.head_dim; d += kThreads) {
        float sum = 0.0f;
        for (int g = 0; g < kGroups; ++g) sum += shrink[g] * all.get((g * kHeads + h) * kState + d);
        partials.sums.put(to * kv.head_dim + d, sum);
      }
      if (thread_idx() == 0) partials.norms.store<2>(2 * to, Vec<float, 2>{{max, weight}});
    }
  }
};

// Block (query head, sequence, slice of the columns): segments joined, then the output gate. Of the segments'
// sums each quarter of the threads adds its share in order; of the weights the block's tree does.
template <int kWave, class T>
struct JoinKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 256;
  static constexpr int kColumns = 64;
  static constexpr int kParts = kThreads / kColumns;
  static constexpr int kHeld = 16;  // segments a thread reads at once
  static_assert(kSegmentBlocks <= kThreads);
  Partials partials;
  SeqTable seqs;
  Heads<T> gate;  // or empty
  Heads<T> out;
  int first_seq;

  static size_t shared_size(int num_segments) {
    return 2 * shared_bytes<float>(kThreads / kWave) + shared_bytes<float>(num_segments) +
           shared_bytes<float>(kThreads);
  }

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const Shared<float> scratch = pool.take<float>(kThreads / kWave);
    const Shared<float> other_scratch = pool.take<float>(kThreads / kWave);
    const Shared<float> shrinks = pool.take<float>(partials.num_segments);
    const Shared<float> sums = pool.take<float>(kThreads);
    const int head = block_idx().x;
    const int seq_idx = first_seq + block_idx().y;
    const int seq_len = seqs.seq_lens.get(seq_idx);
    const int tokens = segment_tokens(seq_len, partials.max_segments);
    const int count = (seq_len + tokens - 1) / tokens;
    const int64_t first = partials.row(block_idx().y, head, 0);

    // Everything that is read is under way before the first of it is used.
    const int i = thread_idx();  // segments are fewer than threads
    Vec<float, 2> norm{{-INFINITY, 0.0f}};
    if (i < count) norm = partials.norms.load<2>(2 * (first + i));
    const int d = block_idx().z * kColumns + i % kColumns;
    const int share = (count + kParts - 1) / kParts;
    const int begin = i / kColumns * share;
    const int end = begin + share < count ? begin + share : count;
    const bool inside = d < partials.head_dim;
    float held[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      held[h] = inside && begin + h < end ? part_sum(first + begin + h, d) : 0.0f;
    const int64_t token = seqs.query_start_loc.get(seq_idx);
    const float open = inside && !gate.empty() ? gate.row(token, head).at(d) : 0.0f;

    const float max = block_max<kWave, kThreads>(norm.v[0], scratch);
    const float shrink = exp2f(norm.v[0] - max);
    if (i < count) shrinks.put(i, shrink);
    const float weight = block_sum<kWave, kThreads>(shrink * norm.v[1], other_scratch);
    float sum = 0.0f;
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (begin + h < end) sum += shrinks.get(begin + h) * held[h];
    if (inside)
      for (int n = begin + kHeld; n < end; ++n) sum += shrinks.get(n) * part_sum(first + n, d);
    sums.put(thread_idx(), sum);
    block_sync();
    if (i >= kColumns || !inside) return;
    sum = 0.0f;
#pragma unroll
    for (int p = 0; p < kParts; ++p) sum += sums.get(p * kColumns + i);
    float value = rounded<T>(sum / weight);
    if (!gate.empty()) value *= rounded<T>(sigmoid(open));
    out.row(token, head).set(d, value);
  }

  DEVICE_FN float part_sum(int64_t row, int d) const {
    return partials.sums.get(row * partials.head_dim + d);
  }
};

template <class T, class E, bool kTable, bool kWholePages>
void run(const Context& context, const Attention& args, const Partials& partials, int blocks) {
  using Kernel = DecodeKernel<T, E, kTable, kWholePages>;
  launch(context.device,
         {.name = kWholePages ? "attention_decode_pages" : "attention_decode",
          .grid = {partials.num_segments, blocks, static_cast<int>(args.num_seqs)},
          .shared_bytes = Kernel::kSharedBytes},
         Kernel{.q = heads<T>(args.q),
                .block_table = matrix<int32_t>(args.block_table),
                .kv = paged_kv<E>(args.kv),
                .seqs = seq_table(args.seqs),
                .partials = partials,
                .first_seq = static_cast<int>(args.first_seq),
                .scale_log2 = args.scale * 1.44269504f,
                .q_words = takes_words(args.q)});
}

// Room for the segments of the longest context that the block table holds.
Partials reserve_partials(const Context& context, const Attention& args, int blocks) {
  const Index num_q_heads = args.q.dim(1);
  const Index head_dim = args.kv.head_dim;
  const Index capacity = args.block_table.dim(1) * args.kv.page_tokens;
  const int max_segments = context.decode_segments > 0 ? context.decode_segments : segment_limit(blocks);
  const int num_segments = std::min(max_segments, ceil_div(capacity, kSegmentUnit));
  const Index rows = args.num_seqs * num_q_heads * num_segments;
  const Index norm_floats = (2 * rows + 3) / 4 * 4;  // the sums are whole 16-byte words
  auto* const floats = static_cast<float*>(
      context.scratch.reserve(static_cast<size_t>(norm_floats + rows * head_dim) * sizeof(float)));
  return {.sums = {floats + norm_floats},
          .norms = {floats},
          .num_q_heads = static_cast<int>(num_q_heads),
          .num_segments = num_segments,
          .max_segments = max_segments,
          .head_dim = static_cast<int>(head_dim)};
}

}  // namespace

void attention_decode(const Context& context, const Attention& args) {
  CHECK_MSG(args.kv.head_dim <= kGroup * kMaxElements, "[attention] head_dim: got {}, need at most {}",
            args.kv.head_dim, kGroup * kMaxElements);
  const int blocks =
      static_cast<int>(args.kv.num_kv_heads) * ceil_div(args.q.dim(1) / args.kv.num_kv_heads, kHeads);
  const Partials partials = reserve_partials(context, args, blocks);
  dispatch_element(args.q.dtype, [&]<class T>() {
    if (!attention_decode_mma(context, args, partials)) {
      dispatch_cache<T>(context.device, args.kv, [&]<class E, bool kTable>() {
        if (args.path == AttentionPath::kPageContiguousDecode)
          run<T, E, kTable, true>(context, args, partials, blocks);
        else
          run<T, E, kTable, false>(context, args, partials, blocks);
      });
    }
    dispatch_wave(context.device, [&]<int kWave>() {
      using Kernel = JoinKernel<kWave, T>;
      launch(context.device,
             {.name = "attention_join",
              .grid = {partials.num_q_heads, static_cast<int>(args.num_seqs),
                       ceil_div(partials.head_dim, Kernel::kColumns)},
              .shared_bytes = Kernel::shared_size(partials.num_segments)},
             Kernel{.partials = partials,
                    .seqs = seq_table(args.seqs),
                    .gate = args.gate.empty() ? Heads<T>{} : heads<T>(args.gate),
                    .out = heads<T>(args.out),
                    .first_seq = static_cast<int>(args.first_seq)});
    });
  });
}

}  // namespace longspan::ops::device
