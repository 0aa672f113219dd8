// Attention of prompt chunks: flash attention in tiles. A task is one block of query tokens with all query
// heads of one kv head, so that a K/V tile is packed once for hundreds of rows. Tiles start at absolute
// multiples of kTileKeys and a row's arithmetic reads nothing of its neighbours: its result does not depend
// on how the prompt was cut into chunks and blocks, on page size, batch mates or threads.
#include "ops/cpu/attention.h"
#include "ops/cpu/paged_kv.h"
#include "ops/cpu/tile_gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_prefill.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "ops/cpu/attention_prefill.h"
#include "ops/cpu/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// Scores become probabilities, and sums so far take the new maximum.
template <class T>
void softmax_tile(const TileRows<T>& tile) {
  for (Index i = 0; i < tile.num_rows; ++i) {
    const Index row = tile.first_row + i;
    const Index num_valid = std::min(tile.num_keys, tile.first_visible + row / tile.group);
    const float correction = softmax_step(tile.scores + i * tile.num_keys, num_valid, tile.num_keys,
                                          tile.scale_log2, tile.p + i * tile.num_keys, tile.states[row]);
    if (correction != 1.0f && !tile.is_first)
      scale_row(tile.o + row * tile.o_stride, tile.o_stride, correction);
  }
}

// to [num_rows, to_stride] = rnd(code * scale)
template <class T>
void unpack_rows(const CachedRows& rows, T* to, Index to_stride) {
  for (Index i = 0; i < rows.num_rows; ++i)
    for_each_vector(rows.head_dim, [&](Index d, auto extent) HWY_ATTR {
      const Vec codes = load(rows.codes + i * rows.row_stride + d, extent);
      store(hn::Mul(codes, set(rows.scale)), to + i * to_stride + d, extent);
    });
}

void unpack_rows_f32(const CachedRows& rows, float* to, Index to_stride) { unpack_rows(rows, to, to_stride); }
void unpack_rows_bf16(const CachedRows& rows, bf16* to, Index to_stride) { unpack_rows(rows, to, to_stride); }
void softmax_tile_f32(const TileRows<float>& tile) { softmax_tile(tile); }
void softmax_tile_bf16(const TileRows<bf16>& tile) { softmax_tile(tile); }
void finish_row_f32(const float* o, float sum, const float* gate, Index head_dim, float* out) {
  finish_row(o, sum, gate, head_dim, out);
}
void finish_row_bf16(const float* o, float sum, const bf16* gate, Index head_dim, bf16* out) {
  finish_row(o, sum, gate, head_dim, out);
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {

HWY_EXPORT(unpack_rows_f32);
HWY_EXPORT(unpack_rows_bf16);
HWY_EXPORT(softmax_tile_f32);
HWY_EXPORT(softmax_tile_bf16);
HWY_EXPORT(finish_row_f32);
HWY_EXPORT(finish_row_bf16);

void unpack_rows(const CachedRows& rows, float* to, Index to_stride) {
  HWY_DYNAMIC_DISPATCH(unpack_rows_f32)(rows, to, to_stride);
}
void unpack_rows(const CachedRows& rows, bf16* to, Index to_stride) {
  HWY_DYNAMIC_DISPATCH(unpack_rows_bf16)(rows, to, to_stride);
}
void softmax_tile(const TileRows<float>& tile) { HWY_DYNAMIC_DISPATCH(softmax_tile_f32)(tile); }
void softmax_tile(const TileRows<bf16>& tile) { HWY_DYNAMIC_DISPATCH(softmax_tile_bf16)(tile); }
void finish_row(const float* o, float sum, const float* gate, Index head_dim, float* out) {
  HWY_DYNAMIC_DISPATCH(finish_row_f32)(o, sum, gate, head_dim, out);
}
void finish_row(const float* o, float sum, const bf16* gate, Index head_dim, bf16* out) {
  HWY_DYNAMIC_DISPATCH(finish_row_bf16)(o, sum, gate, head_dim, out);
}

// On Sapphire Rapids (2 MB of L2) packing takes an eighth of the time, softmax a fifth, products three
// fifths. Tiles of 128 keys cost 12 % more; blocks of 1,024 rows, strips of 32 or tiles of 512 keys gain
// nothing.
constexpr Index kTileKeys = 256;   // keys of a tile
constexpr Index kBlockRows = 512;  // query rows (tokens x heads) a packed tile serves
constexpr Index kStripRows = 128;  // rows whose scores live at a time: 128 KB of scores, 64 KB of p
constexpr Index kTokenStep = 16;   // blocks are cut at multiples of this many tokens
constexpr float kLog2E = 1.44269504f;

constexpr Index round_up(Index n, Index step) { return (n + step - 1) / step * step; }

// What one thread needs, carved from its scratch. The size depends on the model's shape alone.
template <class T>
struct Workspace {
  float* o;              // [block rows, padded head_dim]
  SoftmaxState* states;  // [block rows]
  float* scores;         // [kStripRows, kTileKeys]
  T* q;                  // [block rows, padded head_dim]
  T* p;                  // [kStripRows, kTileKeys]
  T* packed_k;           // panels of [head_dim, kTileKeys]
  T* packed_v;           // panels of [kTileKeys, head_dim]
  T* kv_rows;            // [kTileKeys, padded head_dim], of K or V

  // Lays the arrays out from base on; returns the bytes they take.
  size_t lay_out(void* base, Index block_rows, Index head_dim) {
    auto next = reinterpret_cast<uintptr_t>(base);  // a number: base is null where only the size is asked
    const auto take = [&](auto*& pointer, Index count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(next);
      next += static_cast<uintptr_t>(round_up(count * static_cast<Index>(sizeof(*pointer)), 64));
    };
    const Index stride = round_up(head_dim, kPanelCols);
    take(o, block_rows * stride);
    take(states, block_rows);
    take(scores, kStripRows * kTileKeys);
    take(q, block_rows * stride);
    take(p, kStripRows * kTileKeys);
    take(packed_k, packed_elements<T>(head_dim, kTileKeys));
    take(packed_v, packed_elements<T>(kTileKeys, head_dim));
    take(kv_rows, kTileKeys * stride);
    return next - reinterpret_cast<uintptr_t>(base);
  }
};

// One task's share: `num_tokens` tokens of a sequence under one kv head.
struct QueryBlock {
  Index seq_idx;
  Index kv_head;
  Index first_row;  // token row in q, gate and out
  Index num_tokens;
  Index first_position;  // of the first token
};

// E: the element of the cache, T or f8e4m3.
template <class T, class E>
class BlockAttention {
 public:
  BlockAttention(const Attention& args, const QueryBlock& block, const Workspace<T>& space)
      : args_(args),
        block_(block),
        space_(space),
        kv_(args, block.seq_idx, block.kv_head),
        head_dim_(args.kv.head_dim),
        stride_(round_up(head_dim_, kPanelCols)),
        group_(args.q.dim(1) / args.kv.num_kv_heads),
        end_(block.first_position + block.num_tokens) {}

  void run() {
    load_queries();
    const Index num_rows = block_.num_tokens * group_;
    for (Index tile = 0; tile < end_; tile += kTileKeys) {
      pack_tile(tile);
      const Index first_row =
          std::max(tile - block_.first_position, Index{0}) * group_;  // the first to see it
      for (Index row = first_row; row < num_rows; row += kStripRows)
        attend(tile, row, std::min(kStripRows, num_rows - row));
    }
    finish();
  }

 private:
  T* at(const TensorView& view, Index row) const {
    return view.as<T>() + (block_.first_row + row / group_) * view.stride(0) +
           (block_.kv_head * group_ + row % group_) * view.stride(1);
  }

  void prefetch_row(const T* row) const {
    for (Index d = 0; d < head_dim_; d += 64 / static_cast<Index>(sizeof(T))) __builtin_prefetch(row + d);
  }

  void load_queries() {
    for (Index row = 0; row < block_.num_tokens * group_; ++row) {
      std::copy_n(at(args_.q, row), head_dim_, space_.q + row * stride_);
      space_.states[row] = {-std::numeric_limits<float>::infinity(), 0.0f};
    }
  }

  // Keys the block cannot see stay out: the rest of a page may hold anything, even NaN. V's are zero because
  // their p = 0 is multiplied all the same.
  void pack_tile(Index tile) {
    const Index end = std::min(tile + kTileKeys, end_);
    if constexpr (std::is_same_v<T, E>)
      pack_rows(tile, end);
    else
      pack_codes(tile, end);
  }

  void pack_rows(Index tile, Index end) {
    for (Index position = tile; position < end;) {
      const KvRun<E> run = kv_.run(position, end);
      pack_b_transposed(run.k, kv_.row_stride(), head_dim_, run.count,
                        space_.packed_k + packed_elements<T>(head_dim_, position - tile));
      if (run.count == kTileKeys) {
        pack_b(run.v, kv_.row_stride(), kTileKeys, head_dim_, space_.packed_v);
        return;
      }
      for (Index i = 0; i < run.count; ++i)
        std::copy_n(run.v + i * kv_.row_stride(), head_dim_,
                    space_.kv_rows + (position - tile + i) * stride_);
      position += run.count;
    }
    pack_values(end - tile);
  }

  // The same from codes, which become rows of T first.
  void pack_codes(Index tile, Index end) {
    const auto unpack = [&](const E* KvRun<E>::*plane, float scale) {
      for (Index position = tile; position < end;) {
        const KvRun<E> run = kv_.run(position, end);
        unpack_rows({run.*plane, run.count, kv_.row_stride(), head_dim_, scale},
                    space_.kv_rows + (position - tile) * stride_, stride_);
        position += run.count;
      }
    };
    unpack(&KvRun<E>::k, kv_.k_scale());
    pack_b_transposed(space_.kv_rows, stride_, head_dim_, end - tile, space_.packed_k);
    unpack(&KvRun<E>::v, kv_.v_scale());
    pack_values(end - tile);
  }

  void pack_values(Index num_rows) {
    std::fill(space_.kv_rows + num_rows * stride_, space_.kv_rows + kTileKeys * stride_, T(0.0f));
    pack_b(space_.kv_rows, stride_, kTileKeys, head_dim_, space_.packed_v);
  }

  // One tile for rows first_row .. first_row + num_rows - 1 of the block.
  void attend(Index tile, Index first_row, Index num_rows) {
    const Index last_position = block_.first_position + (first_row + num_rows - 1) / group_;
    const Index num_scores = std::min(kTileKeys, last_position + 1 - tile);
    gemm(space_.q + first_row * stride_, stride_, space_.packed_k, space_.scores, kTileKeys, num_rows,
         round_up(num_scores, kPanelCols), head_dim_, Accumulate::kNo);
    softmax_tile(TileRows<T>{.scores = space_.scores,
                             .p = space_.p,
                             .o = space_.o,
                             .o_stride = stride_,
                             .states = space_.states,
                             .first_row = first_row,
                             .num_rows = num_rows,
                             .num_keys = kTileKeys,
                             .first_visible = block_.first_position + 1 - tile,
                             .group = group_,
                             .scale_log2 = args_.scale * kLog2E,
                             .is_first = tile == 0});
    gemm(space_.p, kTileKeys, space_.packed_v, space_.o + first_row * stride_, stride_, num_rows, head_dim_,
         kTileKeys, tile == 0 ? Accumulate::kNo : Accumulate::kYes);
  }

  void finish() {
    constexpr Index kRowsAhead = 16;  // gate and out come from memory, a head here and a head there
    const Index num_rows = block_.num_tokens * group_;
    for (Index row = 0; row < num_rows; ++row) {
      if (row + kRowsAhead < num_rows) {
        if (!args_.gate.empty()) prefetch_row(at(args_.gate, row + kRowsAhead));
        prefetch_row(at(args_.out, row + kRowsAhead));
      }
      const T* gate = args_.gate.empty() ? nullptr : at(args_.gate, row);
      finish_row(space_.o + row * stride_, space_.states[row].sum, gate, head_dim_, at(args_.out, row));
    }
  }

  const Attention& args_;
  const QueryBlock& block_;
  const Workspace<T>& space_;
  const PagedKv<E> kv_;
  const Index head_dim_;
  const Index stride_;  // of q and o rows
  const Index group_;   // query heads a kv head
  const Index end_;     // positions the block sees
};

// Cuts every sequence into blocks of block_tokens. Tasks count from the longest block (a sequence's last)
// down.
struct Plan {
  const Attention& args;
  Index first_seq;
  Index num_seqs;
  Index block_tokens;

  Index num_blocks(Index seq_idx) const {
    return (seq_rows(args.seqs, seq_idx).num_tokens + block_tokens - 1) / block_tokens;
  }
  Index num_tasks() const {
    Index total = 0;
    for (Index i = 0; i < num_seqs; ++i) total += num_blocks(first_seq + i);
    return total * args.kv.num_kv_heads;
  }
  QueryBlock block(Index task) const {
    const Index kv_head = task % args.kv.num_kv_heads;
    Index block_idx = task / args.kv.num_kv_heads;
    Index seq_idx = first_seq;
    while (block_idx >= num_blocks(seq_idx)) block_idx -= num_blocks(seq_idx++);
    const SeqRows rows = seq_rows(args.seqs, seq_idx);
    const Index begin = (num_blocks(seq_idx) - 1 - block_idx) * block_tokens;
    return {seq_idx, kv_head, rows.first_row + begin, std::min(block_tokens, rows.num_tokens - begin),
            rows.first_position + begin};
  }
};

}  // namespace

template <class T>
void prefill_attention(const Context& context, const Attention& args, Index first_seq, Index num_seqs) {
  const Index group = args.q.dim(1) / args.kv.num_kv_heads;
  const Index max_tokens = std::max(kTokenStep, kBlockRows / group / kTokenStep * kTokenStep);
  Workspace<T> sizes;
  context.scratch.reserve(sizes.lay_out(nullptr, max_tokens * group, args.kv.head_dim));

  Plan plan{args, first_seq, num_seqs, max_tokens};
  while (plan.block_tokens > kTokenStep && plan.num_tasks() < 2 * context.pool.num_threads())
    plan.block_tokens = std::max(kTokenStep, plan.block_tokens / 2);
  context.pool.parallel_for(plan.num_tasks(), [&](int64_t task, int thread) {
    Workspace<T> space;
    space.lay_out(context.scratch.of_thread(thread), max_tokens * group, args.kv.head_dim);
    const QueryBlock block = plan.block(task);
    if (args.kv.dtype == DType::kF8E4M3)
      BlockAttention<T, f8e4m3>(args, block, space).run();
    else
      BlockAttention<T, T>(args, block, space).run();
  });
}

template void prefill_attention<float>(const Context&, const Attention&, Index, Index);
template void prefill_attention<bf16>(const Context&, const Attention&, Index, Index);

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
