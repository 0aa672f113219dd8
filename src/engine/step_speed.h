// StepSpeed: how long a step takes, learnt from the steps that ran. A step costs what its decode rows cost,
// plus a time for each prompt token, plus a time for each token that one of them sees: in a long context most
// of it. Engine thread.
#pragma once

#include <cstdint>

#include "schedule/prefill_limit.h"
#include "schedule/step_plan.h"

namespace longspan::engine {

struct StepWork {
  int64_t num_prefill_tokens = 0;
  double num_pairs = 0;  // of a prompt token and one that it sees: q * (context + q / 2)
  int64_t max_end = 0;   // tokens; where the chunk that goes farthest ends
  int64_t num_decode_seqs = 0;
};
StepWork work_of(const schedule::StepPlan& plan);

class StepSpeed {
 public:
  void add(const StepWork& work, double ms);

  // What Scheduler::plan_step() wants, for prompt tokens that run beside decode rows in a step of `limit_ms`.
  // No limit while nothing is known, and for 0.
  schedule::PrefillLimit prefill_limit(double limit_ms) const;
  // Of steps that only prefilled since start_reporting(), smoothed; 0 before the first.
  double prefill_tokens_per_second() const { return prefill_rate_; }
  void start_reporting() { prefill_rate_ = 0; }  // the warm-up is no figure to show

 private:
  // ms of a prompt token as a straight line over the tokens it sees, of least squares over all steps, older
  // ones with less weight.
  class Line {
   public:
    void add(double seen, double ms);
    double at_zero() const { return at_zero_; }
    double slope() const { return slope_; }
    double at(double seen) const { return at_zero_ + slope_ * seen; }

   private:
    double weight_ = 0, sum_x_ = 0, sum_y_ = 0, sum_xx_ = 0, sum_xy_ = 0;
    double at_zero_ = 0, slope_ = 0;  // neither is negative
  };

  double decode_ms_ = 0;  // of a step without prompt tokens; 0: none was seen
  Line token_ms_;         // beyond that
  double pace_ = 1;       // what the newest steps took of what the line says: the machine's other work
  int64_t far_ = 0;       // tokens; how far the chunks that were timed went; 0: none was
  double prefill_rate_ = 0;
};

}  // namespace longspan::engine
