// InputBatch: turns a StepPlan into the arrays of a forward pass. Buffers are made once and written every
// step.
#pragma once

#include <vector>

#include "cache/page_plan.h"
#include "core/buffer.h"
#include "engine/dispatch.h"
#include "model/step.h"
#include "schedule/scheduler.h"

namespace longspan::engine {

class InputBatch final {
 public:
  InputBatch(const cache::PagePlan& plan, int64_t max_tokens, int64_t max_seqs, Dispatcher& dispatcher);

  // Rows of `all_logits` sequences get logits for every token of their chunk, others for the last one where
  // the plan samples. Borrows the scheduler's block tables: valid until its next plan_step().
  template <class AllLogits>
  const model::StepInputs& build(const schedule::StepPlan& step, schedule::Scheduler& scheduler,
                                 const AllLogits& all_logits,
                                 const std::function<void(Index, const TensorView&)>& layer_tap) {
    begin(step);
    inputs_.layer_tap = layer_tap;
    for (size_t row = 0; row < step.seqs.size(); ++row) add(step.seqs[row], all_logits(step.seqs[row].id));
    finish(step, scheduler);
    return inputs_;
  }

 private:
  void begin(const schedule::StepPlan& step);
  void add(const schedule::PlannedSeq& seq, bool all_logits);
  void finish(const schedule::StepPlan& step, schedule::Scheduler& scheduler);
  void choose_paths(const schedule::StepPlan& step);

  cache::PagePlan plan_;
  Dispatcher& dispatcher_;
  Buffer token_ids_;           // i32 [max_tokens]
  Buffer positions_;           // i32 [max_tokens]
  Buffer query_start_loc_;     // i32 [max_seqs + 1]
  Buffer seq_lens_;            // i32 [max_seqs]
  Buffer logit_rows_;          // i32 [max_tokens]
  std::vector<Buffer> slots_;  // [num_groups] i32 [max_tokens]; empty for state groups
  std::vector<std::vector<ops::StateCheckpoint>> checkpoints_;  // [num_groups]
  int32_t num_tokens_ = 0;
  int32_t num_seqs_ = 0;
  int32_t num_logits_ = 0;
  model::StepInputs inputs_;
};

}  // namespace longspan::engine
