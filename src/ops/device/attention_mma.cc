// Attention of prompt chunks on matrix units: 16-bit floats, heads of 64, 128 or 256, rows in whole 16-byte
// words. The plain form (attention_prefill.cc) takes what this one does not.
#include "ops/device/activation.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/mma.h"
#include "ops/device/online_softmax.h"
#include "ops/device/paged_kv.h"

namespace longspan::ops::device {
namespace {

// Block (query tile, query head): kRows tokens of one sequence, 16 a wave; keys in tiles of kKeys from
// position 0 on, the next tile on its way while one is worked on. Sums O and scores S stay in registers, so
// does P, rounded to T; a row meets its keys in the same order whatever shares its tile or chunk. Flops: 4 *
// head_dim a pair; bound by shared memory, which feeds every fragment of K and V to one wave.
// With codes in the cache it is they that are on their way; a tile of T is made of them when its turn comes.
template <class T, class E, int kDim>
struct MmaPrefillKernel {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 16 * (kThreads / kMmaWave);
  static constexpr int kKeys = 64;
  static constexpr int kPitch = kDim + 8;  // shifts neighbouring rows by four banks
  static constexpr int kWords = kDim / kVec<T>;
  static constexpr bool kCodes = sizeof(E) == 1;
  static constexpr int kTiles = kCodes ? 1 : 2;            // of T, K and V each
  static constexpr int kCodeWords = kDim / 16;             // 16-byte words of a row of codes
  static constexpr int kTileCodes = 2 * kKeys * kDim / 4;  // of K and V, in uint32_t
  static constexpr size_t kSharedBytes = shared_bytes<T>((kRows + 2 * kTiles * kKeys) * kPitch) +
                                         (kCodes ? shared_bytes<uint32_t>(2 * kTileCodes) : 0);

  Heads<T> q;     // [num_tokens, num_q_heads, kDim]
  Heads<T> gate;  // or empty
  Heads<T> out;
  Matrix<int32_t> block_table;  // [num_seqs, max_pages]
  PagedKv<E> kv;
  SeqTable seqs;
  int first_seq;
  int end_seq;
  int group_size;    // query heads a KV head
  float scale_log2;  // scale / ln 2: exponentials are powers of two

  DEVICE_FN void operator()() const {
    int seq_idx = first_seq;
    int tile = static_cast<int>(grid_size().x) - 1 - block_idx().x;  // long ones first
    for (; seq_idx < end_seq; ++seq_idx) {
      const int tiles = (seqs.span(seq_idx).num_rows + kRows - 1) / kRows;
      if (tile < tiles) break;
      tile -= tiles;
    }
    if (seq_idx == end_seq) return;
    const Span span = seqs.span(seq_idx);
    const int head = block_idx().y;
    const int kv_head = head / group_size;
    const int row0 = tile * kRows;
    const int num_rows = span.num_rows - row0 < kRows ? span.num_rows - row0 : kRows;
    const int end = span.context_len + row0 + num_rows;

    SharedPool pool;
    const Shared<T> qs = pool.take<T>((kRows + 2 * kTiles * kKeys) * kPitch);
    const Shared<T> tiles = qs + kRows * kPitch;  // K, V of one tile, K, V of the next
    Shared<uint32_t> codes{};                     // the same
    if constexpr (kCodes) codes = pool.take<uint32_t>(2 * kTileCodes);
    for (int i = thread_idx(); i < kRows * kWords; i += kThreads) {
      const int row = i / kWords;
      const Global<T> from =
          q.row(span.first_row + row0 + (row < num_rows ? row : 0), head) + i % kWords * kVec<T>;
      copy_async(qs.data + row * kPitch + i % kWords * kVec<T>, from.data, row < num_rows);
    }
    const auto load = [&](int key0, int stage) {
      if constexpr (kCodes)
        load_codes(seq_idx, kv_head, key0, end, codes + stage * kTileCodes);
      else
        load_tile(seq_idx, kv_head, key0, end, tiles + stage * 2 * kKeys * kPitch);
    };
    load(0, 0);
    commit_copies();

    const int wave_row = thread_idx() / kMmaWave * 16;
    const int first_position = span.context_len + row0 + wave_row;
    SoftRow rows[2];
    FragmentC sum[kDim / 8] = {};
    int stage = 0;
    for (int key0 = 0; key0 < end; key0 += kKeys, stage ^= 1) {
      if (key0 + kKeys < end) load(key0 + kKeys, stage ^ 1);
      commit_copies();
      wait_copies<1>();
      block_sync();
      if constexpr (kCodes) {
        expand_codes(codes + stage * kTileCodes, kv.scale(0, kv_head), kv.scale(1, kv_head), tiles);
        block_sync();
      }
      if (key0 < first_position + 16) {  // else this wave's rows see none of it
        const Shared<T> ks = tiles + (kCodes ? 0 : stage * 2 * kKeys * kPitch);
        FragmentC score[kKeys / 8] = {};
        multiply_keys(qs + wave_row * kPitch, ks, score);
        soften(score, rows, key0, first_position + thread_idx() % kMmaWave / 4, scale_log2);
        shrink(rows, sum);
        multiply_values(score, ks + kKeys * kPitch, sum);
      }
      if constexpr (!kCodes) block_sync();  // else the next one comes before anything is overwritten
    }
    write(span.first_row + row0 + wave_row, num_rows - wave_row, head, rows, sum);
  }

  // K and V rows of a tile, to to[0 .. kKeys) and to[kKeys .. 2 kKeys). Rows beyond `end` are zeros.
  DEVICE_FN void load_tile(int seq_idx, int kv_head, int key0, int end, Shared<T> to) const {
    const Global<int32_t> table = block_table.row(seq_idx);
    for (int i = thread_idx(); i < kKeys * kWords; i += kThreads) {
      const int position = key0 + i / kWords < end ? key0 + i / kWords : key0;
      const bool present = key0 + i / kWords < end;
      const int page = table.get(position / kv.page_tokens);
      const int word = i % kWords * kVec<T>;
      const int at = i / kWords * kPitch + word;
      copy_async(to.data + at, (kv.row(page, 0, position % kv.page_tokens, kv_head) + word).data, present);
      copy_async(to.data + kKeys * kPitch + at,
                 (kv.row(page, 1, position % kv.page_tokens, kv_head) + word).data, present);
    }
  }

  // The same of codes: rows of kDim bytes, those beyond `end` zeros.
  DEVICE_FN void load_codes(int seq_idx, int kv_head, int key0, int end, Shared<uint32_t> to) const {
    const Global<int32_t> table = block_table.row(seq_idx);
    for (int i = thread_idx(); i < 2 * kKeys * kCodeWords; i += kThreads) {
      const int plane = i / (kKeys * kCodeWords);
      const int row = i / kCodeWords % kKeys;
      const bool present = key0 + row < end;
      const int position = present ? key0 + row : key0;
      const int page = table.get(position / kv.page_tokens);
      const Global<E> from = kv.row(page, plane, position % kv.page_tokens, kv_head) + i % kCodeWords * 16;
      copy_async(to.data + 4 * i, from.data, present);
    }
  }

  // Codes of K and V become the tile's rows.
  DEVICE_FN void expand_codes(Shared<uint32_t> codes, float k_scale, float v_scale, Shared<T> to) const {
    const Shared<uint32_t> pairs{reinterpret_cast<uint32_t*>(to.data)};
    for (int i = thread_idx(); i < 2 * kKeys * kCodeWords; i += kThreads) {
      const float scale = i < kKeys * kCodeWords ? k_scale : v_scale;
      const Vec<uint32_t, 4> word = codes.load<4>(4 * i);
      const int at = (i / kCodeWords * kPitch + i % kCodeWords * 16) / 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t first = word.v[2 * half], second = word.v[2 * half + 1];
        pairs.store<4>(at + 4 * half, {{expand_pair<T>(first, scale), expand_pair<T>(first >> 16, scale),
                                        expand_pair<T>(second, scale), expand_pair<T>(second >> 16, scale)}});
      }
    }
  }

  // score += q k^T
  DEVICE_FN void multiply_keys(Shared<T> q_rows, Shared<T> ks, FragmentC (&score)[kKeys / 8]) const {
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      const FragmentA a = load_a(q_rows + d, kPitch);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        FragmentB first, second;
        load_b_rows(ks + n * 16 * kPitch + d, kPitch, first, second);
        multiply_add<T>(score[2 * n], a, first);
        multiply_add<T>(score[2 * n + 1], a, second);
      }
    }
  }

  DEVICE_FN void shrink(const SoftRow (&rows)[2], FragmentC (&sum)[kDim / 8]) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[n].v[e] *= rows[e / 2].shrink;
  }

  // sum += p v. Two C fragments side by side are one A fragment.
  DEVICE_FN void multiply_values(const FragmentC (&score)[kKeys / 8], Shared<T> vs,
                                 FragmentC (&sum)[kDim / 8]) const {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const FragmentC &low = score[2 * k], &high = score[2 * k + 1];
      const FragmentA p{{pack_pair<T>(low.v[0], low.v[1]), pack_pair<T>(low.v[2], low.v[3]),
                         pack_pair<T>(high.v[0], high.v[1]), pack_pair<T>(high.v[2], high.v[3])}};
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        FragmentB first, second;
        load_b(vs + k * 16 * kPitch + n * 16, kPitch, first, second);
        multiply_add<T>(sum[2 * n], p, first);
        multiply_add<T>(sum[2 * n + 1], p, second);
      }
    }
  }

  DEVICE_FN void write(int64_t first_token, int num_rows, int head, const SoftRow (&rows)[2],
                       const FragmentC (&sum)[kDim / 8]) const {
    const int lane = thread_idx() % kMmaWave;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = group_sum<4>(rows[half].weight);
      const int row = lane / 4 + 8 * half;
      if (row >= num_rows) continue;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const int d = 8 * n + 2 * (lane % 4);
        float value[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          value[e] = rounded<T>(sum[n].v[2 * half + e] / weight);
          if (gate.empty()) continue;
          value[e] *= rounded<T>(sigmoid(gate.row(first_token + row, head).at(d + e)));
        }
        const Vec<T, 2> pair{{from_float<T>(value[0]), from_float<T>(value[1])}};
        out.row(first_token + row, head).template store<2>(d, pair);
      }
    }
  }
};

template <class T, class E, int kDim>
bool run(const Context& context, const Attention& args) {
  using Kernel = MmaPrefillKernel<T, E, kDim>;
  if (Kernel::kSharedBytes > context.device.info().shared_bytes) return false;
  const Index tiles = args.q.dim(0) / Kernel::kRows + args.num_seqs;  // at most
  launch(context.device,
         {.name = "attention_mma",
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
                .scale_log2 = args.scale * 1.44269504f});
  return true;
}

template <class T, class E>
bool run_any_dim(const Context& context, const Attention& args) {
  if (!paged_kv<E>(args.kv).words) return false;
  if (args.kv.head_dim == 64) return run<T, E, 64>(context, args);
  if (args.kv.head_dim == 128) return run<T, E, 128>(context, args);
  if (args.kv.head_dim == 256) return run<T, E, 256>(context, args);
  return false;
}

template <class T>
bool run_any_cache(const Context& context, const Attention& args) {
  if (args.kv.dtype == DType::kF8E4M3) return run_any_dim<T, e4m3_t>(context, args);
  return run_any_dim<T, T>(context, args);
}

}  // namespace

bool attention_mma(const Context& context, const Attention& args) {
  if (context.device.info().wave != kMmaWave || !takes_words(args.q) || !takes_words(args.out)) return false;
  if (args.q.dtype == DType::kBF16) return run_any_cache<bf16_t>(context, args);
  if (args.q.dtype == DType::kF16) return run_any_cache<f16_t>(context, args);
  return false;
}

}  // namespace longspan::ops::device
