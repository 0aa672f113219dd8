#include "schedule/step_budget.h"

#include <algorithm>

namespace longspan::schedule {

int64_t StepBudget::room(int64_t context, int64_t kept) const {
  const int64_t tokens = left_ - kept;
  if (limit_.ms <= 0) return tokens;
  const int64_t in_time = limit_.tokens_within(ms_left_ - limit_.cost(0, kept), context);
  return std::min(tokens, has_chunk_ ? in_time : std::max(in_time, kGrid));
}

void StepBudget::close_decodes() { short_tokens_ = floor_grid(room(0, 0) / 4); }

bool StepBudget::is_short(int64_t num_computed, int64_t num_prompt) const {
  return num_prompt - num_computed <= short_tokens_;
}

int64_t StepBudget::chunk(int64_t num_computed, int64_t num_prompt) const {
  const int64_t end = num_computed + room(num_computed, is_short(num_computed, num_prompt) ? 0 : kept_);
  if (end >= num_prompt) return num_prompt - num_computed;
  return std::max<int64_t>(floor_grid(end) - num_computed, 0);
}

void StepBudget::take_chunk(int64_t num_computed, int64_t num_prompt, int64_t q_len) {
  if (is_short(num_computed, num_prompt)) kept_ = std::max<int64_t>(kept_ - q_len, 0);
  left_ -= q_len;
  ms_left_ -= limit_.cost(num_computed, q_len);
  has_chunk_ = has_chunk_ || q_len > 0;
}

}  // namespace longspan::schedule
