#include "schedule/step_budget.h"

#include <algorithm>

namespace longspan::schedule {

int64_t StepBudget::room() const { return std::min(left_, prefill_left_); }

void StepBudget::close_decodes() { short_tokens_ = floor_grid(room() / 4); }

bool StepBudget::is_short(int64_t num_computed, int64_t num_prompt) const {
  return num_prompt - num_computed <= short_tokens_;
}

int64_t StepBudget::chunk(int64_t num_computed, int64_t num_prompt) const {
  const int64_t room_here = room() - (is_short(num_computed, num_prompt) ? 0 : kept_);
  const int64_t end = num_computed + room_here;
  if (end >= num_prompt) return num_prompt - num_computed;
  return std::max<int64_t>(floor_grid(end) - num_computed, 0);
}

void StepBudget::take_chunk(int64_t num_computed, int64_t num_prompt, int64_t q_len) {
  if (is_short(num_computed, num_prompt)) kept_ = std::max<int64_t>(kept_ - q_len, 0);
  left_ -= q_len;
  prefill_left_ -= q_len;
}

}  // namespace longspan::schedule
