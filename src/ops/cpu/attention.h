// The two attention kernels behind Attention. Both read K and V through PagedKv, so a result never depends
// on page size or block table.
#pragma once

#include "ops/cpu/kernels.h"

namespace longspan::ops::cpu {

// Softmax of one row as far as it has seen keys.
struct SoftmaxState {
  float max = 0;  // largest score so far, in units of log2
  float sum = 0;  // of 2^(score - max)
};

// Sequences first_seq .. first_seq + num_seqs - 1 as prompt chunks: tiled flash attention.
template <class T>
void prefill_attention(const Context& context, const Attention& args, Index first_seq, Index num_seqs);

// The same as decode rows, one token each: split-KV.
template <class T>
void decode_attention(const Context& context, const Attention& args, Index first_seq, Index num_seqs);

}  // namespace longspan::ops::cpu
