// The paged cache and the sequences of a step, as kernels see them.
#pragma once

#include "ops/device/memory.h"
#include "ops/ops.h"

namespace longspan::ops::device {

// E: the element of the cache, T or e4m3_t.
template <class E>
struct PagedKv {
  Global<E> data;       // [num_pages] of [2, page_tokens, num_kv_heads, head_dim]
  int64_t page_stride;  // elements
  int page_tokens;
  int num_kv_heads;
  int head_dim;
  bool words;                 // rows may be read in 16-byte words
  Global<float> scales;       // of codes: [2, num_kv_heads], or empty
  Global<int64_t> saturated;  // [1], or empty

  // One token's K (plane 0) or V (plane 1) of one head.
  DEVICE_FN Global<E> row(int page, int plane, int offset, int head) const {
    const int64_t token = static_cast<int64_t>(plane) * page_tokens + offset;
    return data + (page * page_stride + (token * num_kv_heads + head) * head_dim);
  }
  DEVICE_FN float scale(int plane, int head) const {
    return scales.empty() ? 1.0f : scales.get(plane * num_kv_heads + head);
  }
};

template <class E>
PagedKv<E> paged_kv(const KvCache& kv) {
  const auto size = static_cast<Index>(sizeof(E));
  CHECK_MSG(kv.page_stride_bytes % size == 0, "kv page of {} bytes, elements of {}", kv.page_stride_bytes,
            size);
  return {.data = {static_cast<E*>(kv.data)},
          .page_stride = kv.page_stride_bytes / size,
          .page_tokens = static_cast<int>(kv.page_tokens),
          .num_kv_heads = static_cast<int>(kv.num_kv_heads),
          .head_dim = static_cast<int>(kv.head_dim),
          .words = reinterpret_cast<uintptr_t>(kv.data) % 16 == 0 && kv.page_stride_bytes % 16 == 0 &&
                   kv.head_dim * size % 16 == 0,
          .scales = global<float>(kv.scales),
          .saturated = global<int64_t>(kv.saturated)};
}

// Where a sequence's rows lie, and how much it had before this step.
struct Span {
  int first_row;
  int num_rows;
  int context_len;
};

struct SeqTable {
  Global<int32_t> query_start_loc;  // [num_seqs + 1]
  Global<int32_t> seq_lens;         // [num_seqs]

  DEVICE_FN Span span(int seq_idx) const {
    const int first = query_start_loc.get(seq_idx);
    const int count = query_start_loc.get(seq_idx + 1) - first;
    return {first, count, seq_lens.get(seq_idx) - count};
  }
};

inline SeqTable seq_table(const Sequences& seqs) {
  return {global<int32_t>(seqs.query_start_loc), global<int32_t>(seqs.seq_lens)};
}

}  // namespace longspan::ops::device
