// What the files of the Gated DeltaNet operations share: where a sequence's rows and states lie, and the two
// forms of the delta rule, one head (or one key head's heads) a call.
#pragma once

#include "ops/cpu/kernels.h"

namespace longspan::ops::cpu {

inline constexpr Index kMaxConvKernel = 8;
inline constexpr Index kConvBlock = 1024;  // channels a task: their taps (16 KB at kernel 4) stay in L1

// What a sequence brings to this step.
struct SeqRows {
  Index first_row = 0;    // token row of its first token
  Index num_rows = 0;     // tokens in this step
  Index context_len = 0;  // tokens in the cache before this step
};

inline SeqRows seq_rows(const Sequences& seqs, Index seq_idx) {
  const int32_t* start = seqs.query_start_loc.as<int32_t>();
  const Index num_rows = start[seq_idx + 1] - start[seq_idx];
  return {start[seq_idx], num_rows, seqs.seq_lens.as<int32_t>()[seq_idx] - num_rows};
}

// Rows begin .. end of the sequence whose chunk starts at first_row.
struct ConvSpan {
  Index begin = 0;
  Index end = 0;
  Index first_row = 0;
  const void* history = nullptr;  // T [conv_kernel - 1, conv_channels], or nullptr: position 0, all zeros
};

// f32 S [k_dim, v_dim] of one head in a state page.
inline float* head_state(const StateCache& state, Index page, Index head) {
  return reinterpret_cast<float*>(static_cast<char*>(state.data) + page * state.page_stride_bytes) +
         head * state.k_dim * state.v_dim;
}

// The recurrence for one decode row of value head `head`. scratch: gdn_decode_scratch_bytes.
void gdn_decode(const GatedDelta& args, Index seq_idx, Index head, void* scratch);
size_t gdn_decode_scratch_bytes(const GatedDelta& args);

// The chunked form for all of this step's rows of one prompt, value heads first_head .. + num_heads, which
// share one key head. scratch: gdn_prefill_scratch_bytes, whatever the length.
void gdn_prefill(const GatedDelta& args, Index seq_idx, Index first_head, Index num_heads, void* scratch);
size_t gdn_prefill_scratch_bytes(const GatedDelta& args);

}  // namespace longspan::ops::cpu
