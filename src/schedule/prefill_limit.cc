#include "schedule/prefill_limit.h"

#include <algorithm>
#include <cmath>

namespace longspan::schedule {

double PrefillLimit::cost(int64_t context, int64_t q_len) const {
  const auto q = static_cast<double>(q_len);
  return q * (token_ms + pair_ms * (static_cast<double>(context) + q / 2));
}

int64_t PrefillLimit::tokens_within(double budget_ms, int64_t context) const {
  constexpr double kMany = 1e9;
  if (budget_ms <= 0) return 0;
  // The root of a q^2 + b q = budget, in the form that does not cancel.
  const double a = pair_ms / 2;
  const double b = token_ms + pair_ms * static_cast<double>(context);
  const double divisor = b + std::sqrt(b * b + 4 * a * budget_ms);
  const double tokens = divisor > 0 ? std::min(2 * budget_ms / divisor, kMany) : kMany;
  const auto count = static_cast<int64_t>(tokens);
  return max_end > 0 ? std::min(count, std::max<int64_t>(max_end - context, 0)) : count;
}

}  // namespace longspan::schedule
