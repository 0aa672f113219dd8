// What attention_prefill.cc hands to its SIMD half: one tile's scores for a strip of rows.
#pragma once

#include "ops/cpu/attention.h"

namespace longspan::ops::cpu {

// Rows of codes under one head.
struct CachedRows {
  const f8e4m3* codes;  // [num_rows, row_stride]
  Index num_rows;
  Index row_stride;
  Index head_dim;
  float scale;
};

// Rows are tokens x heads of the group, heads innermost; `first_row` counts from the block's first row.
template <class T>
struct TileRows {
  const float* scores;  // [num_rows, num_keys]
  T* p;                 // [num_rows, num_keys]
  float* o;             // [block rows, o_stride]: sums so far
  Index o_stride;
  SoftmaxState* states;  // [block rows]
  Index first_row;
  Index num_rows;
  Index num_keys;
  Index first_visible;  // keys of this tile that the block's first token sees (may be <= 0)
  Index group;
  float scale_log2;
  bool is_first;  // o holds nothing yet
};

}  // namespace longspan::ops::cpu
