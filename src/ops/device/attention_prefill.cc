// Attention of prompt chunks over the paged cache, without matrix units: the form that every card has.
#include "ops/device/activation.h"
#include "ops/device/kernels.h"
#include "ops/device/kv_reader.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

// Block (query tile, query head): kRows tokens of one sequence, keys in tiles of kKeys from position 0 on.
// Four neighbouring threads share a query row: each takes every fourth key of a tile, then every fourth word
// of the row's sum. A row's keys come in the same order whatever shares its tile or chunk.
template <class T, class E, bool kTable, int kMaxDim>
struct PrefillKernel {
  static constexpr int kThreads = 128;
  static constexpr int kRows = 32;
  static constexpr int kShare = kThreads / kRows;            // threads a row
  static constexpr int kKeys = sizeof(T) == 2 ? 32 : 8;      // 64 KiB of shared memory bear no more
  static constexpr int kPitch = kMaxDim + kVec<T>;           // elements a row in shared memory
  static constexpr int kWords = kMaxDim / kVec<T> / kShare;  // of a sum in one thread
  static constexpr size_t kSharedBytes = shared_bytes<T>((kRows + 2 * kKeys) * kPitch) +
                                         shared_bytes<float>(kRows * (kKeys + 1)) + kTableBytes<kTable>;
  using Word = Vec<T, kVec<T>>;
  using Readers = KvReaders<T, E, kTable>;

  Heads<T> q;     // [num_tokens, num_q_heads, head_dim]
  Heads<T> gate;  // or empty
  Heads<T> out;
  Matrix<int32_t> block_table;  // [num_seqs, max_pages]
  PagedKv<E> kv;
  SeqTable seqs;
  int first_seq;
  int end_seq;
  int group_size;  // query heads a KV head
  float scale;
  bool q_words;

  DEVICE_FN void operator()() const {
    // Which sequence's which tile.
    int seq_idx = first_seq;
    int tile = block_idx().x;
    for (; seq_idx < end_seq; ++seq_idx) {
      const int tiles = (seqs.span(seq_idx).num_rows + kRows - 1) / kRows;
      if (tile < tiles) break;
      tile -= tiles;
    }
    if (seq_idx == end_seq) return;
    const Span span = seqs.span(seq_idx);
    const int head = block_idx().y;
    const int row0 = tile * kRows;
    const int num_rows = span.num_rows - row0 < kRows ? span.num_rows - row0 : kRows;

    SharedPool pool;
    const Readers readers = kv_readers<T, E, kTable, kThreads>(kv, head / group_size, pool);
    const Shared<T> qs = pool.take<T>((kRows + 2 * kKeys) * kPitch);
    const Shared<T> ks = qs + kRows * kPitch;
    const Shared<T> vs = ks + kKeys * kPitch;
    const Shared<float> ps = pool.take<float>(kRows * (kKeys + 1));
    for (int i = 0; i < kRows; ++i)
      load_row(i < num_rows ? q.row(span.first_row + row0 + i, head) : Global<T>{}, q_words,
               KvReader<T, T, false>(), qs + i * kPitch, i);

    const int row = thread_idx() / kShare;
    const int part = thread_idx() % kShare;
    const int last = span.context_len + row0 + (row < num_rows ? row : num_rows - 1);  // position it sees
    const int end = span.context_len + row0 + num_rows;
    float max = -INFINITY, weight = 0.0f;
    float sum[kWords][kVec<T>] = {};
    for (int key0 = 0; key0 < end; key0 += kKeys) {
      block_sync();  // the last tile is read
      load_keys(seq_idx, head / group_size, readers, key0, end, ks, vs);
      block_sync();
      const float shrink =
          add_scores(qs + row * kPitch, ks, ps + row * (kKeys + 1), last - key0, max, weight);
      wave_sync();  // a row's four threads lie in one wave
#pragma unroll
      for (int w = 0; w < kWords; ++w)
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) sum[w][e] *= shrink;
      for (int j = 0; j < kKeys; ++j) {
        const float p = ps.get(row * (kKeys + 1) + j);
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const Word v = vs.template load<kVec<T>>(j * kPitch + (part + w * kShare) * kVec<T>);
#pragma unroll
          for (int e = 0; e < kVec<T>; ++e) sum[w][e] += p * to_float(v.v[e]);
        }
      }
    }
    if (row >= num_rows) return;
    const int64_t token = span.first_row + row0 + row;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
        const int d = (part + w * kShare) * kVec<T> + e;
        if (d >= kv.head_dim) continue;
        float value = rounded<T>(sum[w][e] / weight);
        if (!gate.empty()) value *= rounded<T>(sigmoid(gate.row(token, head).at(d)));
        out.row(token, head).set(d, value);
      }
  }

  // Row i of a tile: the threads of one row's worth of words. Zero where the row is empty or too short.
  template <class Element, class Reader>
  DEVICE_FN void load_row(Global<Element> from, bool words, const Reader& read, Shared<T> to, int i) const {
    constexpr int kRowWords = kMaxDim / kVec<T>;
    const int lane = thread_idx() - i * kRowWords % kThreads;
    const int w = lane < 0 ? lane + kThreads : lane;
    if (w >= kRowWords) return;
    Word word;
    const int d = w * kVec<T>;
    if (!from.empty() && words && d < kv.head_dim) {
      const Vec<Element, kVec<T>> elements = from.template load<kVec<T>>(d);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) word.v[e] = from_float<T>(read(elements.v[e]));
    } else {
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e)
        word.v[e] = from_float<T>(!from.empty() && d + e < kv.head_dim ? read(from.get(d + e)) : 0.0f);
    }
    to.template store<kVec<T>>(d, word);
  }

  DEVICE_FN void load_keys(int seq_idx, int kv_head, const Readers& readers, int key0, int end, Shared<T> ks,
                           Shared<T> vs) const {
    const Global<int32_t> table = block_table.row(seq_idx);
    for (int j = 0; j < kKeys; ++j) {
      const int position = key0 + j;
      Global<E> k{}, v{};
      if (position < end) {
        const int page = table.get(position / kv.page_tokens);
        k = kv.row(page, 0, position % kv.page_tokens, kv_head);
        v = kv.row(page, 1, position % kv.page_tokens, kv_head);
      }
      load_row(k, kv.words, readers.k, ks + j * kPitch, 2 * j);
      load_row(v, kv.words, readers.v, vs + j * kPitch, 2 * j + 1);
    }
  }

  // Probabilities of the row over this tile's keys 0 .. last; returns what earlier sums shrink by. Key 0 of
  // the first tile is seen by every row, so the maximum is finite from then on.
  DEVICE_FN float add_scores(Shared<T> q_row, Shared<T> ks, Shared<float> p_row, int last, float& max,
                             float& weight) const {
    constexpr int kMine = kKeys / kShare;
    const int part = thread_idx() % kShare;
    float score[kMine] = {};
    for (int d = 0; d < kMaxDim; d += kVec<T>) {
      const Word a = q_row.template load<kVec<T>>(d);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const Word b = ks.template load<kVec<T>>((part + i * kShare) * kPitch + d);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) score[i] += to_float(a.v[e]) * to_float(b.v[e]);
      }
    }
    float tile_max = max;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      score[i] = part + i * kShare <= last ? score[i] * scale : -INFINITY;
      tile_max = fmaxf(tile_max, score[i]);
    }
    tile_max = group_max<kShare>(tile_max);
    float tile_weight = 0.0f;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const float p = expf(score[i] - tile_max);
      tile_weight += p;
      p_row.put(part + i * kShare, p);
    }
    const float shrink = expf(max - tile_max);
    weight = weight * shrink + group_sum<kShare>(tile_weight);
    max = tile_max;
    return shrink;
  }
};

template <class T, class E, bool kTable, int kMaxDim>
void run(const Context& context, const Attention& args) {
  using Kernel = PrefillKernel<T, E, kTable, kMaxDim>;
  const Index tiles = args.q.dim(0) / Kernel::kRows + args.num_seqs;  // at most
  launch(context.device,
         {.name = "attention_prefill",
          .grid = {static_cast<int>(tiles), static_cast<int>(args.q.dim(1))},
          .shared_bytes = Kernel::kSharedBytes},
         Kernel{.q = heads<T>(args.q),
                .gate = args.gate.empty() ? Heads<T>{} : heads<T>(args.gate),
                .out = heads<T>(args.out),
                .block_table = matrix<int32_t>(args.block_table),
                .kv = paged_kv<E>(args.kv),
                .seqs = seq_table(args.seqs),
                .first_seq = static_cast<int>(args.first_seq),
                .end_seq = static_cast<int>(args.first_seq + args.num_seqs),
                .group_size = static_cast<int>(args.q.dim(1) / args.kv.num_kv_heads),
                .scale = args.scale,
                .q_words = takes_words(args.q)});
}

}  // namespace

void attention_prefill(const Context& context, const Attention& args) {
  CHECK_MSG(args.kv.head_dim <= 256, "[attention] head_dim: got {}, need at most 256", args.kv.head_dim);
  dispatch_element(args.q.dtype, [&]<class T>() {
    dispatch_cache<T>(context.device, args.kv, [&]<class E, bool kTable>() {
      if (args.kv.head_dim <= 64)
        run<T, E, kTable, 64>(context, args);
      else if (args.kv.head_dim <= 128)
        run<T, E, kTable, 128>(context, args);
      else
        run<T, E, kTable, 256>(context, args);
    });
  });
}

}  // namespace longspan::ops::device
