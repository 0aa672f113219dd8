// How attention of one query token cuts its context, and what is kept of each segment until they are joined.
#pragma once

#include <algorithm>

#include "ops/device/backend.h"
#include "ops/device/launch.h"

namespace longspan::ops::device {

constexpr int kSegmentUnit = 64;  // tokens: segments are multiples of it
constexpr int kSegmentBlocks =
    kMaxDecodeSegments;  // of one long sequence, about two a multiprocessor of the largest cards

// blocks: KV heads times parts of their query heads. Both are functions of the model and of a sequence's own
// length, never of the batch.
HOST_DEVICE_FN int segment_limit(int blocks) { return blocks < kSegmentBlocks ? kSegmentBlocks / blocks : 1; }
HOST_DEVICE_FN int segment_tokens(int seq_len, int max_segments) {
  const int all = kSegmentUnit * max_segments;
  return kSegmentUnit * ((seq_len + all - 1) / all);
}

// Of each segment and query head the sum over its keys of 2^(score - max) v, the maximum and the sum of the
// weights; scores in units of ln 2.
struct Partials {
  Global<float> sums;   // [num_seqs, num_q_heads, num_segments, head_dim]
  Global<float> norms;  // [num_seqs, num_q_heads, num_segments, 2]: maximum, weight
  int num_q_heads;
  int num_segments;  // room for
  int max_segments;  // of one sequence, however long
  int head_dim;

  DEVICE_FN int64_t row(int seq, int head, int segment) const {
    return (static_cast<int64_t>(seq) * num_q_heads + head) * num_segments + segment;
  }
};

}  // namespace longspan::ops::device
