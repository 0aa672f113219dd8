// What one forward pass is given: the tokens of a step, and where each layer's cache lies.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace longspan::model {

// Tables of one layer group (cache room). An attention group uses the first two, a state group the last two.
struct GroupInputs {
  TensorView block_table;  // i32 [num_seqs, max_pages], -1 where unset
  TensorView slots;        // i32 [num_tokens]: page * page_tokens + offset of each token
  TensorView state_pages;  // i32 [num_seqs]
  std::span<const ops::StateCheckpoint> checkpoints;
};

struct StepInputs {
  TensorView token_ids;  // i32 [num_tokens]
  TensorView positions;  // i32 [num_tokens]; text has one position for all three M-RoPE axes
  ops::Sequences seqs;   // decode rows first
  std::vector<GroupInputs> groups;
  TensorView logit_rows;        // i32 [num_logits]: token rows whose logits are wanted, ascending, each once
  Index num_decode_logits = 0;  // how many of them, the first, are decode rows
  // Which attention kernel each run of sequences takes; the runs cover all sequences.
  struct AttentionRun {
    ops::AttentionPath path = ops::AttentionPath::kUnified;
    Index first_seq = 0;
    Index num_seqs = 0;
  };
  std::vector<AttentionRun> attention_runs;
  // Debugging aid: called with k = 0 (embeddings), 1 .. L - 1 (output of layer k - 1) and, when all rows have
  // logits, L (after the final norm) and hidden T [num_tokens, hidden], in host memory.
  std::function<void(Index k, const TensorView& hidden)> layer_tap;

  Index num_tokens() const { return token_ids.dim(0); }
};

// One layer's cache: kv for full attention, state for linear attention.
struct LayerCache {
  int32_t group = 0;  // index into StepInputs::groups
  ops::KvCache kv;
  ops::StateCache state;
};

struct CacheViews {
  std::vector<LayerCache> layers;  // [num_layers]
};

}  // namespace longspan::model
