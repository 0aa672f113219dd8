// Generation: the common path of all wire dialects, from prompt ids to events of text. Native types only.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/answer_form.h"
#include "server/answer_reader.h"
#include "server/prompt_scores.h"
#include "text/tokenizer.h"

namespace longspan::server {

struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;  // token ids; at least one prompt
  int32_t num_choices = 1;                    // of each prompt
  int64_t max_tokens = 0;                     // of each choice; 0: to the end of the context
  engine::SamplingParams sampling;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t priority = 0;
  std::string cache_salt;
  int32_t prompt_logprobs = -1;  // -1: none; n: score the tokens of the prompts, with the n best alternatives
  AnswerOptions answer;
  AnswerForm form;
  std::shared_ptr<text::TokenMasks> masks;  // of the form; null where it has no grammar
};

enum class FinishReason : uint8_t { kStop, kLength, kToolCalls, kCancelled, kError };

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;  // that ended the answer
  int32_t stop_token = -1;                 // likewise, of stop_token_ids; -1: none
  std::string error;                       // with kError
};

// What became known of one choice.
struct ChoiceUpdate {
  int32_t index = 0;  // prompt * num_choices + choice
  Delta delta;
  std::vector<engine::TokenOutput> tokens;  // every token of the answer comes exactly once
  std::optional<Finish> finish;             // the last update of this choice
};

struct Usage {
  int64_t prompt_tokens = 0;  // each prompt counts once, whatever the number of its choices
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;
};

// What happened when, of all choices together; none: not yet.
struct GenerationTimes {
  engine::Clock::time_point submitted;
  std::optional<engine::Clock::time_point> started;  // the first step with a part of a prompt of it
  std::optional<engine::Clock::time_point> first_token;
  std::optional<engine::Clock::time_point> last_token;
};

// Of the first prompt; later ones wait behind it.
struct PrefillProgress {
  int64_t total = 0;
  int64_t cached = 0;
  int64_t processed = 0;
};

// One consumer. Destroying it cancels what still runs.
class Generation final {
 public:
  // Submits. Throws what Engine::submit throws; then nothing runs. Borrows engine and tokenizer.
  Generation(engine::Engine& engine, const text::Tokenizer& tokenizer, const GenerationRequest& request);
  ~Generation();

  // Returns as soon as there is something new, with nothing after the timeout.
  std::vector<ChoiceUpdate> next(std::chrono::milliseconds timeout);
  bool done() const { return num_running_ == 0; }
  // Ends every running choice with kCancelled at the next call of next(). Any thread.
  void cancel();

  Usage usage() const;
  PrefillProgress progress() const;
  // Null unless they were asked for. Complete once the first token of the prompt's first choice is there.
  const PromptScores* prompt_scores(size_t prompt_idx) const;
  const GenerationTimes& times() const { return times_; }

 private:
  struct Choice;
  class Signal;

  std::optional<ChoiceUpdate> look_at(Choice& choice);
  Finish end_of(Choice& choice, const engine::ResponseUpdate& update);

  int64_t num_prompt_tokens_ = 0;
  int32_t num_choices_ = 1;
  std::vector<int32_t> stop_token_ids_;
  std::shared_ptr<Signal> signal_;  // raised by the engine thread; outlives this in its callbacks
  std::vector<std::shared_ptr<PromptScores>> scores_;  // [prompts] or empty
  std::vector<std::unique_ptr<Choice>> choices_;
  size_t num_running_ = 0;
  GenerationTimes times_{.submitted = engine::Clock::now()};
};

}  // namespace longspan::server
