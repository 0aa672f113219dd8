#include "measure/examined_engine.h"

#include <bit>

namespace longspan::measure {
namespace {

void append_floats(std::vector<float>& to, const TensorView& view) {
  dispatch_dtype(view.dtype, [&]<class T>() {
    for (Index i = 0; i < view.num_elements(); ++i) to.push_back(static_cast<float>(view.as<T>()[i]));
  });
}

bool same_top(const std::vector<engine::Logprob>& one, const std::vector<engine::Logprob>& other) {
  if (one.size() != other.size()) return false;
  for (size_t i = 0; i < one.size(); ++i)
    if (one[i].token != other[i].token ||
        std::bit_cast<uint32_t>(one[i].logprob) != std::bit_cast<uint32_t>(other[i].logprob))
      return false;
  return true;
}

}  // namespace

bool same_bits(const ExaminedAnswer& one, const ExaminedAnswer& other) {
  if (one.tokens != other.tokens || one.error != other.error) return false;
  for (size_t i = 0; i < one.top.size(); ++i)
    if (!same_top(one.top[i], other.top[i])) return false;
  return true;
}

std::string difference_text(const ExaminedAnswer& one, const ExaminedAnswer& other) {
  if (!one.error.empty() || !other.error.empty())
    return fmt::format("one ended with '{}', the other with '{}'", one.error, other.error);
  for (size_t i = 0; i < std::min(one.tokens.size(), other.tokens.size()); ++i) {
    if (one.tokens[i] != other.tokens[i])
      return fmt::format("token {} is {} in one, {} in the other", i, one.tokens[i], other.tokens[i]);
    for (size_t j = 0; j < std::min(one.top[i].size(), other.top[i].size()); ++j)
      if (one.top[i][j].token != other.top[i][j].token || one.top[i][j].logprob != other.top[i][j].logprob)
        return fmt::format("the log probabilities of token {} differ: {} and {}", i, one.top[i][j].logprob,
                           other.top[i][j].logprob);
  }
  if (one.tokens.size() != other.tokens.size())
    return fmt::format("one has {} tokens, the other {}", one.tokens.size(), other.tokens.size());
  return "none";
}

ExaminedEngine::ExaminedEngine(engine::EngineOptions options, Watch watch, Index max_rows) {
  report_->max_rows = max_rows;
  // Tests have put a faulty backend in front of the device's: what looks on stands in front of that.
  const auto given = options.wrap_backend;
  options.wrap_backend = [this, watch,
                          given](std::unique_ptr<ops::Backend> backend) -> std::unique_ptr<ops::Backend> {
    if (given) backend = given(std::move(backend));
    if (watch == Watch::kTrace) return std::make_unique<TracingBackend>(std::move(backend), trace_);
    if (watch == Watch::kReference) return std::make_unique<ReferenceCheck>(std::move(backend), report_);
    return backend;
  };
  engine_ = std::make_unique<engine::Engine>(options);
}

ExaminedAnswer ExaminedEngine::answer(const std::vector<int32_t>& prompt, int64_t num_tokens, Keep keep) {
  ExaminedAnswer answer;
  engine::GenerateRequest request{.prompt = prompt, .max_new_tokens = num_tokens, .ignore_eos = true};
  request.sampling.num_logprobs = engine::kMaxLogprobs;
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  if (keep == Keep::kLayers) {
    answer.layers.resize(static_cast<size_t>(info().config.num_layers()) + 1);
    engine_->set_layer_tap([&](Index k, const TensorView& hidden) {
      std::vector<float>& rows = answer.layers[static_cast<size_t>(k)];
      // Rows of the answer come behind those of the prompt and are not kept.
      if (std::ssize(rows) < num_prompt * info().config.hidden_size) append_floats(rows, hidden);
    });
    request.on_prompt_logits = [&](int64_t position, const TensorView& logits) {
      if (position + 1 == num_prompt) append_floats(answer.logits, logits);
    };
  }
  report_->active = trace_->active = true;
  {
    engine::Response response = engine_->submit(std::move(request));
    engine::ResponseUpdate update;
    while (!update.done) {
      update = response.wait(std::chrono::seconds(10));
      answer.num_cached = std::max(answer.num_cached, update.num_cached);
      for (engine::TokenOutput& token : update.tokens) {
        answer.tokens.push_back(token.token);
        answer.top.push_back(std::move(token.top));
      }
    }
    if (update.reason == engine::FinishReason::kError) answer.error = update.error;
  }
  report_->active = trace_->active = false;
  engine_->set_layer_tap(nullptr);
  return answer;
}

std::shared_ptr<const OpTrace> ExaminedEngine::take_trace() {
  auto taken = std::make_shared<OpTrace>();
  taken->steps.swap(trace_->steps);
  return taken;
}

}  // namespace longspan::measure
