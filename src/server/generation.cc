#include "server/generation.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "text/grammar/constrained_answer.h"

namespace longspan::server {

// Says that some choice may have news, or that someone cancelled.
class Generation::Signal {
 public:
  void raise() {
    {
      const std::lock_guard lock(mutex_);
      raised_ = true;
    }
    changed_.notify_one();
  }
  void cancel() {
    cancelled_.store(true);
    raise();
  }
  void wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return raised_; });
    raised_ = false;
  }
  bool cancelled() const { return cancelled_.load(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;  // guarded by mutex_
  std::atomic<bool> cancelled_ = false;
};

struct Generation::Choice {
  int32_t index;
  AnswerReader reader;
  std::optional<engine::Response> response;  // none once it ended
  int64_t num_prompt_tokens = 0;
  int64_t num_prefilled = 0;
  int64_t num_cached = 0;
  int64_t num_tokens = 0;
};

namespace {

std::function<std::span<const uint64_t>(int32_t)> constraint(const engine::EngineInfo& info,
                                                             const GenerationRequest& request) {
  if (info.eos_ids.empty())
    fail(ErrorKind::kUnsupported, "the model names no token that ends an answer of a form");
  const bool in_reasoning = request.answer.reasoning == ReasoningMode::kOpen;
  auto answer = std::make_shared<text::ConstrainedAnswer>(request.masks, info.eos_ids, info.config.vocab_size,
                                                          in_reasoning);
  return [answer](int32_t last_token) {
    if (last_token >= 0) answer->push(last_token);
    return answer->allowed();
  };
}

}  // namespace

Generation::Generation(engine::Engine& engine, const text::Tokenizer& tokenizer,
                       const GenerationRequest& request)
    : num_choices_(request.num_choices),
      stop_token_ids_(request.stop_token_ids),
      signal_(std::make_shared<Signal>()) {
  for (size_t prompt_idx = 0; prompt_idx < request.prompts.size(); ++prompt_idx) {
    const std::vector<int32_t>& prompt = request.prompts[prompt_idx];
    num_prompt_tokens_ += static_cast<int64_t>(prompt.size());
    for (int32_t k = 0; k < num_choices_; ++k) {
      engine::GenerateRequest one{.prompt = prompt,
                                  .max_new_tokens = request.max_tokens,
                                  .sampling = request.sampling,
                                  .ignore_eos = request.ignore_eos,
                                  .stop_token_ids = request.stop_token_ids,
                                  .priority = request.priority,
                                  .cache_salt = request.cache_salt};
      if (request.prompt_logprobs >= 0 && k == 0) {
        scores_.push_back(std::make_shared<PromptScores>(prompt, request.prompt_logprobs));
        one.on_prompt_logits = [scores = scores_.back()](int64_t position, const TensorView& logits) {
          scores->add(position, logits);
        };
      }
      if (request.masks) one.allowed_tokens = constraint(engine.info(), request);
      if (one.sampling.seed) *one.sampling.seed += static_cast<uint64_t>(k);  // choices differ, repeatably
      auto choice =
          std::make_unique<Choice>(Choice{.index = static_cast<int32_t>(prompt_idx) * num_choices_ + k,
                                          .reader = AnswerReader(tokenizer, request.answer),
                                          .num_prompt_tokens = static_cast<int64_t>(prompt.size())});
      choice->response = engine.submit(std::move(one), [signal = signal_] { signal->raise(); });
      choices_.push_back(std::move(choice));
    }
  }
  num_running_ = choices_.size();
}

Generation::~Generation() = default;

void Generation::cancel() { signal_->cancel(); }

std::vector<ChoiceUpdate> Generation::next(std::chrono::milliseconds timeout) {
  const auto look_at_all = [this] {
    std::vector<ChoiceUpdate> updates;
    for (const auto& choice : choices_)
      if (choice->response)
        if (auto update = look_at(*choice)) updates.push_back(*std::move(update));
    return updates;
  };
  std::vector<ChoiceUpdate> updates = look_at_all();
  if (!updates.empty() || done()) return updates;
  signal_->wait(timeout);
  return look_at_all();
}

std::optional<ChoiceUpdate> Generation::look_at(Choice& choice) {
  engine::ResponseUpdate news = choice.response->wait(std::chrono::milliseconds(0));
  if (signal_->cancelled() && !news.done) {
    news.done = true;
    news.reason = engine::FinishReason::kCancelled;
  }
  choice.num_prefilled = std::max(choice.num_prefilled, news.num_prefilled);
  choice.num_cached = std::max(choice.num_cached, news.num_cached);
  if (news.started) times_.started = std::min(times_.started.value_or(*news.started), *news.started);
  ChoiceUpdate update{.index = choice.index};
  for (engine::TokenOutput& token : news.tokens) {
    if (choice.reader.ended()) break;  // what the engine made while nobody looked
    times_.first_token = std::min(times_.first_token.value_or(token.time), token.time);
    times_.last_token = std::max(times_.last_token.value_or(token.time), token.time);
    choice.reader.push(token.token);
    ++choice.num_tokens;
    update.tokens.push_back(std::move(token));
  }
  if (news.done || choice.reader.ended()) {
    update.finish = end_of(choice, news);
    choice.response.reset();  // cancels, where it still runs
    --num_running_;
  }
  update.delta = choice.reader.take();
  if (update.tokens.empty() && update.delta.empty() && !update.finish) return std::nullopt;
  return update;
}

Finish Generation::end_of(Choice& choice, const engine::ResponseUpdate& update) {
  const bool ended_by_text = choice.reader.ended();
  const bool complete = ended_by_text || update.reason == engine::FinishReason::kStop;
  choice.reader.finish(complete ? text::AnswerEnd::kComplete : text::AnswerEnd::kCut);
  if (complete) {
    Finish finish{.reason = choice.reader.has_calls() ? FinishReason::kToolCalls : FinishReason::kStop,
                  .stop_string = choice.reader.stop_string()};
    const bool asked_for =
        std::find(stop_token_ids_.begin(), stop_token_ids_.end(), update.stop_token) != stop_token_ids_.end();
    if (!ended_by_text && asked_for) finish.stop_token = update.stop_token;
    return finish;
  }
  switch (update.reason) {
    case engine::FinishReason::kError:
      return {.reason = FinishReason::kError, .error = update.error};
    case engine::FinishReason::kCancelled:
      return {.reason = FinishReason::kCancelled};
    default:
      return {.reason = FinishReason::kLength};
  }
}

Usage Generation::usage() const {
  Usage usage{.prompt_tokens = num_prompt_tokens_};
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->num_tokens;
    usage.reasoning_tokens += choice->reader.num_reasoning_tokens();
    if (choice->index % num_choices_ == 0) usage.cached_tokens += choice->num_cached;
  }
  return usage;
}

const PromptScores* Generation::prompt_scores(size_t prompt_idx) const {
  return scores_.empty() ? nullptr : scores_[prompt_idx].get();
}

PrefillProgress Generation::progress() const {
  const Choice& first = *choices_.front();
  return {.total = first.num_prompt_tokens, .cached = first.num_cached, .processed = first.num_prefilled};
}

}  // namespace longspan::server
