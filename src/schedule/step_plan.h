// StepPlan: one step of the engine as plain numbers. The order of execution is the order of the fields:
// swap_out, swap_in, copies, then the forward pass over seqs, which also writes the checkpoints.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/request.h"

namespace longspan::schedule {

// seqs[i] is row i of every block table and of the batch.
struct PlannedSeq {
  SeqId id = 0;
  int32_t q_len = 0;        // tokens to compute now
  int32_t context_len = 0;  // tokens in the cache already; 0: start from a zero state
  bool is_prefill = false;  // chunked forms, even for one token; false: q_len 1, recurrent forms
  bool sample = false;      // logits of the last token make a new token (never for one that is known already)
  std::span<const int32_t> tokens;  // [q_len], the sequence's own memory, valid until complete()
};

// The whole page `src` to the whole page `dst`, in each layer of the group.
struct PageCopy {
  int32_t group = 0;
  int32_t src = 0;
  int32_t dst = 0;
};

// Inside the chunk of batch row `row`: also write the state after num_tokens tokens to `page`.
struct CheckpointWrite {
  int32_t row = 0;
  int32_t num_tokens = 0;  // of the sequence from its start; on the 64-token grid
  int32_t page = 0;
};

struct StepPlan {
  std::vector<PageCopy> swap_out;  // device to host page
  std::vector<PageCopy> swap_in;   // host to device page
  std::vector<PageCopy> copies;    // device to device: what a prefix hit may not share
  std::vector<PlannedSeq> seqs;    // decode rows first
  int32_t num_decode_seqs = 0;
  int32_t num_tokens = 0;                                 // sum of q_len
  std::vector<std::vector<CheckpointWrite>> checkpoints;  // [num_groups]; empty for the attention group

  bool empty() const { return seqs.empty(); }
};

}  // namespace longspan::schedule
