// PrefillLimit: how long the prompt tokens of a step may take, and what they cost. Pure arithmetic.
#pragma once

#include <cstdint>

namespace longspan::schedule {

// A chunk of q tokens behind `context` others takes token_ms * q + pair_ms * q * (context + q / 2): products
// for each token, attention for each pair of a token and one that it sees.
struct PrefillLimit {
  double ms = 0;        // 0: no limit
  double token_ms = 0;  // both 0: every chunk fits
  double pair_ms = 0;
  int64_t max_end = 0;  // tokens; no chunk ends behind it, as nothing is known of there; 0: no limit

  double cost(int64_t context, int64_t q_len) const;  // ms
  // The longest chunk that takes at most `budget_ms`.
  int64_t tokens_within(double budget_ms, int64_t context) const;
};

}  // namespace longspan::schedule
