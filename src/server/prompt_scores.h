// PromptScores: how likely a model finds each token of a prompt, collected while the prompt is read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "engine/response.h"

namespace longspan::server {

// Filled by the engine thread through add(); read by the consumer once the first token of the answer is
// there.
class PromptScores final {
 public:
  // `num_top` alternatives are kept for each token.
  PromptScores(std::vector<int32_t> prompt, int32_t num_top)
      : prompt_(std::move(prompt)), num_top_(num_top) {}

  // logits T [vocab] at `position` score the token behind it. Logprobs are those of the raw logits.
  void add(int64_t position, const TensorView& logits);

  const std::vector<int32_t>& prompt() const { return prompt_; }
  // Of prompt tokens 1 .. size - 1: nothing comes before the first.
  const std::vector<engine::TokenOutput>& scores() const { return scores_; }

 private:
  std::vector<int32_t> prompt_;
  int32_t num_top_;
  std::vector<float> row_;     // [vocab], one position at a time
  std::vector<int32_t> best_;  // [vocab], likewise
  std::vector<engine::TokenOutput> scores_;
};

}  // namespace longspan::server
