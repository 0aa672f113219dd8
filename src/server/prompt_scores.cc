#include "server/prompt_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/dtype.h"

namespace longspan::server {

void PromptScores::add(int64_t position, const TensorView& logits) {
  const auto next = static_cast<size_t>(position) + 1;
  if (next >= prompt_.size() || scores_.size() >= next) return;  // the last one scores the answer
  row_.resize(static_cast<size_t>(logits.num_elements()));
  dispatch_dtype(logits.dtype, [&]<class T>() {
    std::transform(logits.as<T>(), logits.as<T>() + row_.size(), row_.begin(),
                   [](T value) { return static_cast<float>(value); });
  });
  const float max = *std::max_element(row_.begin(), row_.end());
  double sum = 0;
  for (const float logit : row_) sum += std::exp(static_cast<double>(logit - max));
  const double log_sum = static_cast<double>(max) + std::log(sum);
  const auto logprob = [&](int32_t token) {
    const double value = static_cast<double>(row_[static_cast<size_t>(token)]) - log_sum;
    return std::isfinite(value) ? std::max(static_cast<float>(value), engine::kMinLogprob)
                                : engine::kMinLogprob;
  };
  engine::TokenOutput score{.token = prompt_[next], .logprob = logprob(prompt_[next])};
  const bool sortable = std::isfinite(log_sum);  // NaN has no order; the engine ends such a request
  const auto num_top = sortable ? std::min(static_cast<size_t>(num_top_), row_.size()) : 0;
  best_.resize(row_.size());
  std::iota(best_.begin(), best_.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = row_[static_cast<size_t>(a)];
    const float y = row_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(num_top), best_.end(), better);
  for (size_t i = 0; i < num_top; ++i) score.top.push_back({best_[i], logprob(best_[i])});
  scores_.push_back(std::move(score));
}

}  // namespace longspan::server
