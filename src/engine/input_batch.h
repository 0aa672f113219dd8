// InputBatch: turns a StepPlan into the arrays of a forward pass. Buffers are made once and written every
// step: in the general way, or, while one sequence decodes token after token, only where a step differs from
// the last. Both give the same integers.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/page_plan.h"
#include "core/buffer.h"
#include "engine/dispatch.h"
#include "model/step.h"
#include "schedule/scheduler.h"

namespace longspan::engine {

// The steady way is open to a step that passes all of these; the first that fails is the reason of the miss.
inline constexpr size_t kNumSteadyConditions = 6;
std::string_view steady_condition(size_t i);  // "one_sequence", ...; the name of misses[i]

struct InputCounters {
  bool reserved = false;       // the capability gate: false when switched off
  int64_t num_dispatched = 0;  // steps that took the steady way
  std::array<int64_t, kNumSteadyConditions> misses{};
};

class InputBatch final {
 public:
  InputBatch(const cache::PagePlan& plan, int64_t max_tokens, int64_t max_seqs, Dispatcher& dispatcher);

  // Rows of `all_logits` sequences get logits for every token of their chunk, others for the last one where
  // the plan samples. Borrows the scheduler's block tables: valid until its next plan_step().
  template <class AllLogits>
  const model::StepInputs& build(const schedule::StepPlan& step, schedule::Scheduler& scheduler,
                                 const AllLogits& all_logits,
                                 const std::function<void(Index, const TensorView&)>& layer_tap) {
    inputs_.layer_tap = layer_tap;
    is_steady_ = try_steady(step, scheduler);
    if (is_steady_) return inputs_;
    begin(step);
    for (size_t row = 0; row < step.seqs.size(); ++row) add(step.seqs[row], all_logits(step.seqs[row].id));
    finish(step, scheduler);
    return inputs_;
  }

  bool is_steady() const { return is_steady_; }  // whether the last build() took the steady way

  // Counts and logs from now on (not during the warm-up).
  void start_counting() { counting_ = true; }
  const InputCounters& counters() const { return counters_; }

 private:
  // What the state gate remembers of the last step.
  struct Last {
    schedule::SeqId id = -1;
    int32_t seq_len = 0;
    bool is_decode =
        false;  // a step of one decode row that samples: its arrays have the shape of the next one
  };

  // The state gate, and what is behind it. False: the general way is to be taken.
  bool try_steady(const schedule::StepPlan& step, const schedule::Scheduler& scheduler);
  void advance(const schedule::PlannedSeq& seq, const schedule::Scheduler& scheduler);
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
  Last last_;
  bool is_steady_ = false;
  bool counting_ = false;
  InputCounters counters_;
};

// The first array in which two steps' inputs differ, and where ("slots of group 0: [3] is 17 and 18"); empty
// when they are the same to the integer.
std::string first_difference(const model::StepInputs& a, const model::StepInputs& b);

}  // namespace longspan::engine
