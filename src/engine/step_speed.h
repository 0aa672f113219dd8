// StepSpeed: how long a step takes, learnt from the steps that ran. A step costs what its decode rows cost,
// plus a time for each prompt token; that time grows with the context, so the newest steps count most. Engine
// thread.
#pragma once

#include <cstdint>

namespace longspan::engine {

class StepSpeed {
 public:
  void add(int64_t num_prefill_tokens, int64_t num_decode_seqs, double ms);

  // Prompt tokens that fit into a step of `limit_ms` beside its decode rows, for each ms of the limit: what
  // Scheduler::plan_step() wants. 0: nothing is known yet.
  double prefill_tokens_per_ms(double limit_ms) const;
  // Of steps that only prefilled since start_reporting(), smoothed; 0 before the first.
  double prefill_tokens_per_second() const { return prefill_rate_; }
  void start_reporting() { prefill_rate_ = 0; }  // the warm-up is no figure to show

 private:
  double decode_ms_ = 0;  // of a step without prompt tokens; 0: none was seen
  double token_ms_ = 0;   // of a prompt token beyond that; 0: none was seen
  double prefill_rate_ = 0;
};

}  // namespace longspan::engine
