#include "engine/step_speed.h"

#include <algorithm>

#include "schedule/step_budget.h"

namespace longspan::engine {
namespace {

// Weights of the newest step. Slower than expected is believed at once: streams wait for it.
constexpr double kWeight = 0.3;
constexpr double kWeightOfSlower = 0.8;
// A line's older steps lose weight slowly, so that what a long context costs is known from one long prompt to
// the next.
constexpr double kMemory = 0.98;
// A step that took longer than this times what was expected was held up by something else: it says no more of
// what tokens cost.
constexpr double kMaxSurprise = 4;
// Prompt tokens take at least this share of their step, and get at least this share of a limit.
constexpr double kMinShare = 0.1;
// A chunk goes no farther than this times what was timed before: where tokens cost in proportion to what they
// see, and nothing is known of it yet, it takes this much longer than expected.
constexpr double kMaxReach = 1.5;

void smooth(double& value, double newest, double weight) {
  value += value == 0 ? newest : weight * (newest - value);
}

}  // namespace

StepWork work_of(const schedule::StepPlan& plan) {
  StepWork work{.num_prefill_tokens = plan.num_tokens - plan.num_decode_seqs,
                .num_decode_seqs = plan.num_decode_seqs};
  for (const schedule::PlannedSeq& seq : plan.seqs) {
    if (!seq.is_prefill) continue;
    work.num_pairs += seq.q_len * (seq.context_len + seq.q_len / 2.0);
    work.max_end = std::max<int64_t>(work.max_end, seq.context_len + seq.q_len);
  }
  return work;
}

void StepSpeed::Line::add(double seen, double ms) {
  for (double* sum : {&weight_, &sum_x_, &sum_y_, &sum_xx_, &sum_xy_}) *sum *= kMemory;
  weight_ += 1;
  sum_x_ += seen;
  sum_y_ += ms;
  sum_xx_ += seen * seen;
  sum_xy_ += seen * ms;
  const double mean_x = sum_x_ / weight_;
  const double mean_y = sum_y_ / weight_;
  const double spread = sum_xx_ / weight_ - mean_x * mean_x;
  const double together = sum_xy_ / weight_ - mean_x * mean_y;
  const double steepest = mean_x > 0 ? mean_y / mean_x : 0;  // the line through zero
  slope_ = spread > 1e-6 * sum_xx_ / weight_ ? std::clamp(together / spread, 0.0, steepest) : 0;
  at_zero_ = mean_y - slope_ * mean_x;
}

void StepSpeed::add(const StepWork& work, double ms) {
  if (work.num_prefill_tokens == 0) {
    smooth(decode_ms_, ms, kWeight);
    return;
  }
  // The tail of a prompt: hardly more than a decode row.
  if (work.num_prefill_tokens < schedule::kGrid) return;
  const auto num_tokens = static_cast<double>(work.num_prefill_tokens);
  const double token_ms = std::max(ms - decode_ms_, kMinShare * ms) / num_tokens;
  const double seen = work.num_pairs / num_tokens;
  const double expected = token_ms_.at(seen);
  if (expected > 0) {
    const double pace = token_ms / expected;
    smooth(pace_, pace, pace > pace_ ? kWeightOfSlower : kWeight);
  }
  token_ms_.add(seen, expected > 0 ? std::min(token_ms, kMaxSurprise * expected) : token_ms);
  far_ = std::max(far_, work.max_end);
  if (work.num_decode_seqs == 0) smooth(prefill_rate_, num_tokens / ms * 1000, kWeight);
}

schedule::PrefillLimit StepSpeed::prefill_limit(double limit_ms) const {
  if (far_ == 0 || limit_ms <= 0) return {};
  return {.ms = std::max(limit_ms - decode_ms_, kMinShare * limit_ms),
          .token_ms = pace_ * token_ms_.at_zero(),
          .pair_ms = pace_ * token_ms_.slope(),
          .max_end = static_cast<int64_t>(kMaxReach * static_cast<double>(far_))};
}

}  // namespace longspan::engine
