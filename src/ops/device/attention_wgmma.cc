// Attention of prompt chunks by Hopper's own means (hopper.h): 16-bit floats in cache and queries, heads of
// 128 or 256, pages of whole key tiles. The same sums in the same order as attention_mma.cc, hence the same
// bits.
#include "ops/device/activation.h"
#include "ops/device/backend.h"
#include "ops/device/hopper.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/online_softmax.h"
#include "ops/device/paged_kv.h"

namespace longspan::ops::device {
namespace {

constexpr int kWgmmaKeys = 64;  // of a tile; a page has whole ones

// Block (query head, query tile): two groups of four waves with 64 tokens each, and a third whose first
// thread copies tiles of keys, K and V, kStages ahead. A group's products with K of the next tile and V of
// this one run while it makes probabilities of that next tile's scores; the groups take turns in starting
// products, so that one has the matrix units while the other does arithmetic. Flops: 4 * kDim a pair.
template <class T, int kDim>
struct WgmmaPrefillKernel {
  static constexpr int kGroups = 2;
  static constexpr int kThreads = (1 + kGroups) * kGroupThreads;
  static constexpr bool kWholeUnit = true;
  static constexpr int kGroupRows = 64;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kKeys = kWgmmaKeys;
  static constexpr int kStages = kDim == 256 ? 2 : 4;
  static constexpr int kPanels = kDim / kPanelCols;
  static constexpr int kPanelBytes = 64 * kPanelRowBytes;  // of a group's queries, of a tile's keys
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static constexpr size_t kSharedBytes =
      kPanelAlignment + static_cast<size_t>(kGroups + 2 * kStages) * kTileBytes + 4 * kStages * 8;

  CUtensorMap kv_map;  // see describe_cache
  Heads<T> q;          // [num_tokens, num_q_heads, kDim]
  Heads<T> gate;       // or empty
  Heads<T> out;
  Matrix<int32_t> block_table;  // [num_seqs, max_pages]
  SeqTable seqs;
  int page_tokens;
  int first_seq;
  int end_seq;
  int group_size;    // query heads a KV head
  float scale_log2;  // scale / ln 2: exponentials are powers of two

  // The block's queries.
  struct Tile {
    int seq_idx;
    int64_t first_token;
    int first_position;
    int num_rows;  // 0: none for this block
    DEVICE_FN int end() const { return first_position + num_rows; }
    DEVICE_FN int num_key_tiles() const { return (end() + kKeys - 1) / kKeys; }
  };
  // K or V on its way: what the copying thread and the groups wait for, and the place.
  struct Stages {
    char* tiles;
    uint64_t* there;  // [kStages]
    uint64_t* read;   // [kStages]
    DEVICE_FN char* tile(int i) const { return tiles + i % kStages * kTileBytes; }
    DEVICE_FN void await(int i) const { wait_barrier(there + i % kStages, i / kStages % 2); }
    DEVICE_FN void await_room(int i) const {
      if (i >= kStages) wait_barrier(read + i % kStages, (i / kStages - 1) % 2);
    }
    DEVICE_FN void release(int i) const {  // by one lane a wave
      if (thread_idx() % kMmaWave == 0) arrive(read + i % kStages);
    }
    DEVICE_FN void init() const {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(there + i, 1);
        init_barrier(read + i, kGroups * kGroupThreads / kMmaWave);
      }
    }
  };
  using Sums = FragmentC[kDim / 8];
  using Scores = FragmentC[kKeys / 8];
  using Weights = FragmentA[kKeys / 16];  // scores as probabilities, rounded to T

  DEVICE_FN void operator()() const {
#if defined(LONGSPAN_HOPPER)
    const Tile tile = find_tile();
    if (tile.num_rows == 0) return;
    char* const base = align_panels(shared_memory());
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(base + (kGroups + 2 * kStages) * kTileBytes);
    const Stages keys{base + kGroups * kTileBytes, barriers, barriers + kStages};
    const Stages values{base + (kGroups + kStages) * kTileBytes, barriers + 2 * kStages,
                        barriers + 3 * kStages};
    if (thread_idx() == 0) {
      keys.init();
      values.init();
      publish_barriers();
    }
    block_sync();
    // By a shuffle the compiler sees that all lanes of a wave agree.
    const int group = shuffle(thread_idx() / kGroupThreads, 0, kMmaWave) - 1;
    if (group < 0) {
      give_registers<24>();
      if (thread_idx() == 0) copy_tiles(keys, values, tile);
    } else {
      take_registers<240>();
      attend(base + group * kTileBytes, keys, values, tile, group);
    }
#endif
  }

#if defined(LONGSPAN_HOPPER)
  DEVICE_FN Tile find_tile() const {
    int tile = grid_size().y - 1 - block_idx().y;  // long ones first
    for (int seq_idx = first_seq; seq_idx < end_seq; ++seq_idx) {
      const Span span = seqs.span(seq_idx);
      const int tiles = (span.num_rows + kRows - 1) / kRows;
      if (tile >= tiles) {
        tile -= tiles;
        continue;
      }
      const int row0 = tile * kRows;
      const int num_rows = span.num_rows - row0 < kRows ? span.num_rows - row0 : kRows;
      return {seq_idx, span.first_row + row0, span.context_len + row0, num_rows};
    }
    return {};
  }

  // K of one tile before V of the tile before it: the order in which they are read. A page's number is
  // fetched while the copies before it wait for room.
  DEVICE_FN void copy_tiles(const Stages& keys, const Stages& values, const Tile& tile) const {
    const Global<int32_t> table = block_table.row(tile.seq_idx);
    const int kv_head = block_idx().x / group_size;
    const auto copy = [&](const Stages& stages, int i, int page, int plane) {
      uint64_t* const there = stages.there + i % kStages;
      stages.await_room(i);
      arrive_with_bytes(there, kTileBytes);
      const int token = plane * page_tokens + i * kKeys % page_tokens;
      copy_box(stages.tile(i), kv_map, {{0, token, 0, kv_head, page}}, there);
    };
    const int num_tiles = tile.num_key_tiles();
    int last_page = 0;
    int page = table.get(0);
    for (int i = 0; i < num_tiles; ++i) {
      const int next_page = i + 1 < num_tiles ? table.get((i + 1) * kKeys / page_tokens) : 0;
      copy(keys, i, page, 0);
      if (i > 0) copy(values, i - 1, last_page, 1);
      last_page = page;
      page = next_page;
    }
    copy(values, num_tiles - 1, last_page, 1);
  }

  DEVICE_FN void attend(char* queries, const Stages& keys, const Stages& values, const Tile& tile,
                        int group) const {
    load_queries(queries, tile, group);
    const int first_position = tile.first_position + group * kGroupRows;
    const int lane = thread_idx() % kGroupThreads;
    const int position = first_position + lane / kMmaWave * 16 + lane % kMmaWave / 4;
    const int seen = (first_position + kGroupRows + kKeys - 1) / kKeys;
    const int num_tiles = seen < tile.num_key_tiles() ? seen : tile.num_key_tiles();
    const PanelOperand q_operand = panel_rows(queries);
    Sums sum = {};
    Scores score;
    Weights weights;
    SoftRow rows[2];

    if (group == 1) end_turn(group);  // the other one begins
    keys.await(0);
    await_turn(group);
    begin_products();
    multiply_keys(q_operand, panel_rows(keys.tile(0)), score);
    commit_products();
    end_turn(group);
    wait_products<0>();
    hold(score);
    keys.release(0);
    soften(score, rows, 0, position, scale_log2);
    round_weights(score, weights);
    for (int i = 1; i < num_tiles; ++i) {
      keys.await(i);
      await_turn(group);
      hold(score);
      begin_products();
      multiply_keys(q_operand, panel_rows(keys.tile(i)), score);
      commit_products();
      values.await(i - 1);
      hold(sum);
      begin_products();
      multiply_values(weights, panel_depth(values.tile(i - 1), kPanelBytes), sum);
      commit_products();
      end_turn(group);
      wait_products<1>();
      hold(score);
      keys.release(i);
      soften(score, rows, i * kKeys, position, scale_log2);
      wait_products<0>();
      hold(sum);
      values.release(i - 1);
      shrink(rows, sum);
      round_weights(score, weights);
    }
    if (num_tiles < tile.num_key_tiles()) {  // the other group has one more: a turn without work
      await_turn(group);
      end_turn(group);
    }
    const int last = num_tiles - 1;
    values.await(last);
    if (num_tiles * kKeys > tile.end()) clear_rows(values.tile(last), tile.end() - last * kKeys, group);
    hold(sum);
    begin_products();
    multiply_values(weights, panel_depth(values.tile(last), kPanelBytes), sum);
    commit_products();
    wait_products<0>();
    hold(sum);
    write(queries, tile, group, rows, sum);
  }

  // Named barriers 1 and 2: a group's turn; 3 and 4: a group's own.
  DEVICE_FN void await_turn(int group) const { meet(1 + group, kGroups * kGroupThreads); }
  DEVICE_FN void end_turn(int group) const { announce(2 - group, kGroups * kGroupThreads); }
  DEVICE_FN void group_sync(int group) const { meet(3 + group, kGroupThreads); }

  // A word (16 bytes) of one of the group's rows.
  struct Word {
    int row;
    int col;
    DEVICE_FN int byte() const { return col / kPanelCols * kPanelBytes + panel_byte(row, col % kPanelCols); }
  };
  static constexpr int kRowWords = kDim / 8;
  static constexpr int kThreadWords = kGroupRows * kRowWords / kGroupThreads;
  DEVICE_FN Word word_of(int i) const {  // of this thread, 0 .. kThreadWords - 1
    const int word = i * kGroupThreads + thread_idx() % kGroupThreads;
    return {word / kRowWords, word % kRowWords * 8};
  }

  // Rows that the tile lacks are zeros. The gate will be read at the end.
  DEVICE_FN void load_queries(char* to, const Tile& tile, int group) const {
    const int first = group * kGroupRows;
    for (int i = 0; i < kThreadWords; ++i) {
      const Word word = word_of(i);
      const bool present = first + word.row < tile.num_rows;
      const int64_t token = tile.first_token + (present ? first + word.row : 0);
      copy_async(to + word.byte(), (q.row(token, block_idx().x) + word.col).data, present);
      if (!gate.empty()) gate.row(token, block_idx().x).prefetch(word.col);
    }
    commit_copies();
    wait_copies<0>();
    publish_shared();
    group_sync(group);
  }

  // Rows of V from `first` on, where nobody wrote yet: 0 times what lies there may be NaN. Both groups do it,
  // each before its product.
  DEVICE_FN void clear_rows(char* tile, int first, int group) const {
    for (int i = first * 8 + thread_idx() % kGroupThreads; i < kKeys * 8; i += kGroupThreads)
      for (int panel = 0; panel < kPanels; ++panel)
        store_shared(tile + panel * kPanelBytes + i * 16, Vec<uint32_t, 4>{});
    publish_shared();
    group_sync(group);
  }

  // score = q k^T
  DEVICE_FN void multiply_keys(PanelOperand queries, PanelOperand keys, Scores& score) const {
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      const int byte = d / kPanelCols * kPanelBytes + d % kPanelCols * 2;
      add_product<T>(score, queries.at(byte), keys.at(byte), d > 0);
    }
  }

  // sum += p v
  DEVICE_FN void multiply_values(const Weights& weights, PanelOperand values, Sums& sum) const {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) add_product<T>(sum, weights[k], values.at(k * 16 * kPanelRowBytes));
  }

  // Two C fragments side by side are one A fragment.
  DEVICE_FN void round_weights(const Scores& score, Weights& weights) const {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const FragmentC& half = score[2 * k + i / 2];
        weights[k].v[i] = pack_pair<T>(half.v[i % 2 * 2], half.v[i % 2 * 2 + 1]);
      }
  }

  DEVICE_FN void shrink(const SoftRow (&rows)[2], Sums& sum) const {
    if (all_lanes(rows[0].shrink == 1.0f && rows[1].shrink == 1.0f)) return;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[n].v[e] *= rows[e / 2].shrink;
  }

  // By way of the memory that held the queries, so that rows leave in whole words.
  DEVICE_FN void write(char* memory, const Tile& tile, int group, const SoftRow (&rows)[2],
                       const Sums& sum) const {
    const int lane = thread_idx() % kGroupThreads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = group_sum<4>(rows[half].weight);
      const int row = lane / kMmaWave * 16 + lane % kMmaWave / 4 + 8 * half;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        store_shared(memory + Word{row, 8 * n}.byte() + lane % 4 * 4,
                     pack_pair<T>(sum[n].v[2 * half] / weight, sum[n].v[2 * half + 1] / weight));
    }
    group_sync(group);
    constexpr int kBatch = 4;  // words whose gates are on their way together
#pragma unroll 1
    for (int i = 0; i < kThreadWords; i += kBatch) {
      Vec<T, 8> gates[kBatch] = {};
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const Word word = word_of(i + j);
        const int row = group * kGroupRows + word.row;
        if (!gate.empty() && row < tile.num_rows)
          gates[j] = gate.row(tile.first_token + row, block_idx().x).template load<8>(word.col);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const Word word = word_of(i + j);
        const int row = group * kGroupRows + word.row;
        auto values = load_shared<Vec<T, 8>>(memory + word.byte());
        if (!gate.empty()) apply_gate(gates[j], values);
        if (row < tile.num_rows)
          out.row(tile.first_token + row, block_idx().x).template store<8>(word.col, values);
      }
    }
  }

  DEVICE_FN static void apply_gate(const Vec<T, 8>& gates, Vec<T, 8>& values) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float open = rounded<T>(sigmoid(to_float(gates.v[e])));
      values.v[e] = from_float<T>(to_float(values.v[e]) * open);
    }
  }
#endif
};

// The cache as boxes, one head's key tile each: [num_pages, num_kv_heads, panels, K and then V of a page's
// tokens, kPanelCols]. False where the driver cannot.
template <class T>
bool describe_cache(const KvCache& kv, CUtensorMap& map) {
  const auto type =
      std::is_same_v<T, bf16_t> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto dim = static_cast<cuuint64_t>(kv.head_dim), num_heads = static_cast<cuuint64_t>(kv.num_kv_heads);
  return describe_boxes({.type = type,
                         .data = kv.data,
                         .shape = {kPanelCols, 2 * static_cast<cuuint64_t>(kv.page_tokens), dim / kPanelCols,
                                   num_heads, static_cast<cuuint64_t>(kv.num_pages)},
                         .stride_bytes = {num_heads * dim * sizeof(T), kPanelCols * sizeof(T),
                                          dim * sizeof(T), static_cast<cuuint64_t>(kv.page_stride_bytes)},
                         .box = {kPanelCols, kWgmmaKeys, static_cast<cuuint32_t>(dim / kPanelCols), 1, 1}},
                        map);
}

template <class T, int kDim>
bool run_wgmma(const Context& context, const Attention& args) {
  using Kernel = WgmmaPrefillKernel<T, kDim>;
  CUtensorMap kv_map;
  if (!describe_cache<T>(args.kv, kv_map)) return false;
  const Index tiles = args.q.dim(0) / Kernel::kRows + args.num_seqs;  // at most
  launch(context.device,
         {.name = "attention_wgmma",
          .grid = {static_cast<int>(args.q.dim(1)), static_cast<int>(tiles)},
          .shared_bytes = Kernel::kSharedBytes},
         Kernel{.kv_map = kv_map,
                .q = heads<T>(args.q),
                .gate = args.gate.empty() ? Heads<T>{} : heads<T>(args.gate),
                .out = heads<T>(args.out),
                .block_table = matrix<int32_t>(args.block_table),
                .seqs = seq_table(args.seqs),
                .page_tokens = static_cast<int>(args.kv.page_tokens),
                .first_seq = static_cast<int>(args.first_seq),
                .end_seq = static_cast<int>(args.first_seq + args.num_seqs),
                .group_size = static_cast<int>(args.q.dim(1) / args.kv.num_kv_heads),
                .scale_log2 = args.scale * 1.44269504f});
  return true;
}

template <class T>
bool run_wgmma_any_dim(const Context& context, const Attention& args) {
  if (args.kv.head_dim == 128) return run_wgmma<T, 128>(context, args);
  return run_wgmma<T, 256>(context, args);
}

}  // namespace

bool has_attention_wgmma(const DeviceInfo& device, const PrefillShape& shape) {
  return device.arch == "sm_90" && (shape.dtype == DType::kBF16 || shape.dtype == DType::kF16) &&
         (shape.kv_dtype == shape.dtype || shape.kv_dtype == DType::kF8E4M3) &&
         (shape.head_dim == 128 || shape.head_dim == 256) && shape.page_tokens % kWgmmaKeys == 0;
}

bool attention_wgmma(const Context& context, const Attention& args) {
  const PrefillShape shape{args.q.dtype, args.kv.dtype, args.kv.head_dim, args.kv.page_tokens};
  if (args.kv.dtype != args.q.dtype || !has_attention_wgmma(context.device.info(), shape)) return false;
  if (!takes_words(args.q) || !takes_words(args.gate) || !takes_words(args.out)) return false;
  if (!paged_kv<bf16_t>(args.kv).words) return false;
  if (args.q.dtype == DType::kBF16) return run_wgmma_any_dim<bf16_t>(context, args);
  return run_wgmma_any_dim<f16_t>(context, args);
}

}  // namespace longspan::ops::device
