#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace longspan::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

uint64_t fresh_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// Throws unless min <= value <= max (a NaN is refused too).
void check_range(const char* name, double value, double min, double max) {
  if (!(value >= min && value <= max))
    fail(ErrorKind::kInvalid, "{}: got {}, need {} to {}", name, value, min, max);
}

}  // namespace

void validate(const SamplingParams& params) {
  check_range("temperature", params.temperature, 0, 100);
  check_range("top_k", params.top_k, 0, 1e9);
  check_range("top_p", params.top_p, 1e-12, 1);
  check_range("min_p", params.min_p, 0, 1);
  check_range("repetition_penalty", params.repetition_penalty, 1e-3, 1e3);
  check_range("presence_penalty", params.presence_penalty, -2, 2);
  check_range("frequency_penalty", params.frequency_penalty, -2, 2);
  check_range("logprobs", params.num_logprobs, -1, kMaxLogprobs);
  check_range("min_tokens", static_cast<double>(params.min_tokens), 0, 1e9);
  for (const auto& [token, bias] : params.logit_bias) check_range("logit_bias", bias, -100, 100);
}

SamplingParams default_sampling(const io::GenerationConfig& config) {
  SamplingParams params;
  if (!config.do_sample.value_or(false)) return params;
  params.temperature = config.temperature.value_or(1);
  params.top_k = static_cast<int32_t>(config.top_k.value_or(0));
  params.top_p = config.top_p.value_or(1);
  params.min_p = config.min_p.value_or(0);
  params.repetition_penalty = config.repetition_penalty.value_or(1);
  return params;
}

SamplerState::SamplerState(const SamplingParams& params, const std::vector<int32_t>& prompt,
                           int64_t vocab_size)
    : seed_(params.seed ? *params.seed : fresh_seed()) {
  if (params.repetition_penalty == 1 && params.presence_penalty == 0 && params.frequency_penalty == 0) return;
  counts_.assign(static_cast<size_t>(vocab_size), 0);
  in_prompt_.assign(static_cast<size_t>(vocab_size), 0);
  for (int32_t token : prompt) in_prompt_[static_cast<size_t>(token)] = 1;
}

void SamplerState::accept(int32_t token) {
  ++num_accepted_;
  last_accepted_ = token;
  if (!counts_.empty()) ++counts_[static_cast<size_t>(token)];
}

// The state depends on seed and position alone: the same draw whatever else ran in between.
ops::DrawRow draw_row(const SamplingParams& params, const SamplerState& state) {
  constexpr double kUnit = 1 << ops::kDistanceBits;
  ops::DrawRow row{.top_k = static_cast<uint32_t>(params.top_k),
                   .state = state.seed() + static_cast<uint64_t>(state.num_accepted()) * ops::kStateStep};
  if (params.greedy()) row.top_k = 1;
  row.scale = is_greedy(row) ? std::numeric_limits<float>::max()
                             : static_cast<float>(kUnit * ops::kLog2E / params.temperature);
  if (params.min_p > 0)
    row.max_distance = static_cast<uint32_t>(std::min<double>(ops::kFar, -std::log2(params.min_p) * kUnit));
  if (params.top_p < 1) row.top_p = static_cast<uint64_t>(params.top_p * 0x1p64);
  return row;
}

Sampler::Sampler(int64_t vocab_size)
    : raw_(static_cast<size_t>(vocab_size)), adjusted_(static_cast<size_t>(vocab_size)) {
  keys_.reserve(static_cast<size_t>(vocab_size));
}

SampledToken Sampler::sample(const TensorView& logits, const SamplingParams& params,
                             const SamplerState& state, const Choice& choice) {
  CHECK(choice.allowed.empty() || choice.allowed.size() * 64 >= raw_.size());
  CHECK(logits.num_elements() == static_cast<Index>(raw_.size()));
  dispatch_dtype(logits.dtype, [&]<class T>() {
    const T* from = logits.as<T>();
    for (size_t i = 0; i < raw_.size(); ++i) raw_[i] = static_cast<float>(from[i]);
  });
  SampledToken sampled;
  const float max = *std::max_element(raw_.begin(), raw_.end());
  double total = 0;  // NaN anywhere makes it NaN
  for (float logit : raw_) total += logit;
  sampled.finite = !std::isnan(total) && std::isfinite(max);
  if (!sampled.finite) return sampled;

  const bool plain =
      params.logit_bias.empty() && !state.penalised() && choice.ruled_out.empty() && choice.allowed.empty();
  if (!plain) adjust(params, state, choice);
  const std::vector<float>& from = plain ? raw_ : adjusted_;
  const ops::DrawRow row = draw_row(params, state);
  sampled.token = is_greedy(row)
                      ? static_cast<int32_t>(std::max_element(from.begin(), from.end()) - from.begin())
                      : ops::draw_token(from, row, keys_);
  if (params.num_logprobs >= 0) report(params, sampled);
  return sampled;
}

void Sampler::adjust(const SamplingParams& params, const SamplerState& state, const Choice& choice) {
  adjusted_ = raw_;
  for (const auto& [token, bias] : params.logit_bias) adjusted_[static_cast<size_t>(token)] += bias;
  if (state.penalised())
    for (size_t i = 0; i < adjusted_.size(); ++i) {
      const int32_t count = state.count(static_cast<int64_t>(i));
      float& logit = adjusted_[i];
      if (count > 0 || state.in_prompt(static_cast<int64_t>(i))) {
        const auto penalty = static_cast<float>(params.repetition_penalty);
        logit = logit > 0 ? logit / penalty : logit * penalty;
      }
      if (count > 0)
        logit -= static_cast<float>(params.presence_penalty +
                                    params.frequency_penalty * static_cast<double>(count));
    }
  for (int32_t token : choice.ruled_out) adjusted_[static_cast<size_t>(token)] = kNever;
  if (choice.allowed.empty()) return;
  for (size_t i = 0; i < adjusted_.size(); ++i)
    if ((choice.allowed[i / 64] >> (i % 64) & 1) == 0) adjusted_[i] = kNever;
}

void Sampler::report(const SamplingParams& params, SampledToken& sampled) const {
  const float max = *std::max_element(raw_.begin(), raw_.end());
  double total = 0;
  for (float logit : raw_) total += std::exp(static_cast<double>(logit) - max);
  const double log_total = std::log(total) + max;
  const auto logprob = [&](int32_t token) {
    return std::max(kMinLogprob, static_cast<float>(raw_[static_cast<size_t>(token)] - log_total));
  };
  sampled.logprob = logprob(sampled.token);
  const auto num_top = static_cast<size_t>(std::min(params.num_logprobs, kMaxLogprobs));
  if (num_top == 0) return;
  std::vector<int32_t> ids(raw_.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const size_t keep = std::min(num_top, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(keep), ids.end(),
                    [&](int32_t x, int32_t y) {
                      const float lx = raw_[static_cast<size_t>(x)];
                      const float ly = raw_[static_cast<size_t>(y)];
                      return lx != ly ? lx > ly : x < y;
                    });
  for (size_t i = 0; i < keep; ++i) sampled.top.push_back({ids[i], logprob(ids[i])});
}

}  // namespace longspan::engine
