#include "engine/device_sampler.h"

#include <algorithm>

namespace longspan::engine {

std::string_view host_sampling(size_t i) {
  constexpr std::string_view kNames[] = {"no_device",  "prefill",   "not_sampled", "too_many",  "logprobs",
                                         "logit_bias", "penalties", "grammar",     "min_tokens"};
  static_assert(std::size(kNames) == kNumHostSampling);
  return i < kNumHostSampling ? kNames[i] : "";
}

std::optional<HostSampling> host_sampling_of(const SamplingParams& params, const SamplerState& state,
                                             bool constrained) {
  if (params.num_logprobs >= 0) return HostSampling::kLogprobs;
  if (!params.logit_bias.empty()) return HostSampling::kLogitBias;
  if (state.penalised()) return HostSampling::kPenalties;
  if (constrained) return HostSampling::kGrammar;
  if (state.num_accepted() < params.min_tokens) return HostSampling::kMinTokens;
  return std::nullopt;
}

DeviceSampler::DeviceSampler(model::Model& model, Memory& memory, Index max_rows)
    : model_(model), memory_(memory) {
  if (memory.is_host()) return;
  device_rows_ = memory.allocate(DType::kU8, {max_rows, static_cast<Index>(sizeof(ops::DrawRow))});
  known_.reserve(static_cast<size_t>(max_rows));
}

std::span<const int32_t> DeviceSampler::choose(const TensorView& logits, std::span<const ops::DrawRow> rows) {
  counters_.num_on_device += counting_;
  if (std::ranges::all_of(rows, is_greedy)) return model_.best_tokens(logits);
  const TensorView device_rows = device_rows_.view().rows(0, std::ssize(rows));
  if (!std::ranges::equal(rows, known_)) {
    known_.assign(rows.begin(), rows.end());
    memory_.upload(device_rows.data, known_.data(), device_rows.size_bytes());
    counters_.num_row_uploads += counting_;
  }
  for (ops::DrawRow& row : known_) row.state += ops::kStateStep;
  return model_.draw_tokens(logits, device_rows);
}

}  // namespace longspan::engine
