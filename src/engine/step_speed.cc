#include "engine/step_speed.h"

#include <algorithm>

#include "schedule/step_budget.h"

namespace longspan::engine {
namespace {

// Weights of the newest step. Slower than expected is believed at once: streams wait for it.
constexpr double kWeight = 0.3;
constexpr double kWeightOfSlower = 0.8;
// Prompt tokens take at least this share of their step, and get at least this share of a limit.
constexpr double kMinShare = 0.1;

void smooth(double& value, double newest, double weight) {
  value += value == 0 ? newest : weight * (newest - value);
}

}  // namespace

void StepSpeed::add(int64_t num_prefill_tokens, int64_t num_decode_seqs, double ms) {
  if (num_prefill_tokens == 0) {
    smooth(decode_ms_, ms, kWeight);
    return;
  }
  if (num_prefill_tokens < schedule::kGrid) return;  // the tail of a prompt: hardly more than a decode row
  const auto num_tokens = static_cast<double>(num_prefill_tokens);
  const double token_ms = std::max(ms - decode_ms_, kMinShare * ms) / num_tokens;
  smooth(token_ms_, token_ms, token_ms > token_ms_ ? kWeightOfSlower : kWeight);
  if (num_decode_seqs == 0) smooth(prefill_rate_, num_tokens / ms * 1000, kWeight);
}

double StepSpeed::prefill_tokens_per_ms(double limit_ms) const {
  if (token_ms_ == 0 || limit_ms <= 0) return 0;
  const double room_ms = std::max(limit_ms - decode_ms_, kMinShare * limit_ms);
  return room_ms / limit_ms / token_ms_;
}

}  // namespace longspan::engine
