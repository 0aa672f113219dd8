// One kv head of one sequence in the paged cache: positions in, contiguous runs of K and V rows out.
#pragma once

#include <algorithm>

#include "ops/dequantize.h"

namespace longspan::ops::cpu {

// Rows of consecutive positions that lie in one page, row_stride elements apart.
template <class E>
struct KvRun {
  const E* k = nullptr;  // [count, head_dim]
  const E* v = nullptr;  // [count, head_dim]
  Index count = 0;
};

// E: the element of the cache, T or f8e4m3.
template <class E>
class PagedKv {
 public:
  PagedKv(const Attention& args, Index seq_idx, Index kv_head)
      : table_(args.block_table.as<const int32_t>() + seq_idx * args.block_table.stride(0)),
        head_(static_cast<const E*>(args.kv.data) + kv_head * args.kv.head_dim),
        page_stride_bytes_(args.kv.page_stride_bytes),
        page_tokens_(args.kv.page_tokens),
        row_stride_(args.kv.num_kv_heads * args.kv.head_dim),
        k_scale_(kv_scale(args.kv, 0, kv_head)),
        v_scale_(kv_scale(args.kv, 1, kv_head)) {}

  Index row_stride() const { return row_stride_; }
  Index page_tokens() const { return page_tokens_; }
  float k_scale() const { return k_scale_; }  // of codes
  float v_scale() const { return v_scale_; }

  // The longest run from `position` that stays in its page and before `end`.
  KvRun<E> run(Index position, Index end) const {
    const Index offset = position % page_tokens_;
    const char* page = reinterpret_cast<const char*>(head_) +
                       static_cast<Index>(table_[position / page_tokens_]) * page_stride_bytes_;
    const E* k = reinterpret_cast<const E*>(page) + offset * row_stride_;
    return {k, k + page_tokens_ * row_stride_, std::min(page_tokens_ - offset, end - position)};
  }

 private:
  const int32_t* table_;  // [max_pages]
  const E* head_;         // this kv head's column of page 0
  Index page_stride_bytes_;
  Index page_tokens_;
  Index row_stride_;
  float k_scale_;
  float v_scale_;
};

// The rows a sequence brings to this step.
struct SeqRows {
  Index first_row = 0;       // token row of its first token
  Index num_tokens = 0;      // tokens in this step
  Index first_position = 0;  // position of its first token
};

inline SeqRows seq_rows(const Sequences& seqs, Index seq_idx) {
  const int32_t* start = seqs.query_start_loc.as<int32_t>();
  const Index num_tokens = start[seq_idx + 1] - start[seq_idx];
  return {start[seq_idx], num_tokens, seqs.seq_lens.as<int32_t>()[seq_idx] - num_tokens};
}

}  // namespace longspan::ops::cpu
