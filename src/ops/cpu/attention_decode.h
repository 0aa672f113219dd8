// What attention_decode.cc hands to its SIMD half: one segment of one sequence's keys under some query heads
// of one kv head.
#pragma once

#include "ops/cpu/attention.h"
#include "ops/cpu/paged_kv.h"

namespace longspan::ops::cpu {

// Query heads of one pass over K and V. Four for float, which is there to be exact: what they take to compile
// counts.
template <class T>
inline constexpr int kMaxPassHeads = std::is_same_v<T, float> ? 4 : 8;

// E: the element of the cache, T or f8e4m3.
template <class T, class E = T>
struct Segment {
  const PagedKv<E>& kv;
  Index begin;  // positions begin .. end - 1; begin lies on the block grid
  Index end;
  Index max_run;  // rows walked after one look at the block table: 16, or all of a page
  float* q;       // [num_heads, stride], zero beyond head_dim; comes back in another order
  Index num_heads;
  Index head_dim;
  Index stride;  // of q and o rows: head_dim rounded up to 16
  float scale_log2;
  float* o;              // out: [num_heads, stride], sums not yet divided
  SoftmaxState* states;  // out: [num_heads]
};

// All segments of one query head.
template <class T>
struct MergeRow {
  const float* o;              // [num_segments, num_q_heads, stride], from this head on
  const SoftmaxState* states;  // [num_segments, num_q_heads], from this head on
  Index num_segments;
  Index num_q_heads;
  Index head_dim;
  Index stride;
  float* sum;     // [stride], workspace
  const T* gate;  // [head_dim] or nullptr
  T* out;         // [head_dim]
};

}  // namespace longspan::ops::cpu
