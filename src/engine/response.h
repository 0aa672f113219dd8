// Request and Response: the two ends of a generation. The engine thread writes a response, one consumer reads
// it; dropping the consumer's handle cancels the request.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace longspan::engine {

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };

struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids, each below the vocabulary size; at least one
  int64_t max_new_tokens = 0;   // 0: to the end of the context
  SamplingParams sampling;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // besides the model's own
  int32_t priority = 0;                 // smaller first
  std::string cache_salt;
  // With prefix caching: what the cache keeps of the prompt stays there until Engine::reset_prefix_cache(),
  // within EngineOptions::max_pinned_tokens.
  bool pin_prefix = false;
  // Called on the engine thread before each token is chosen, with the one chosen last (-1: none yet): the
  // tokens that may be chosen, as bits [ceil(vocab / 64)], at least one. They win over min_tokens. May
  // allocate; must not throw, and take little time: every request waits for it.
  std::function<std::span<const uint64_t>(int32_t last_token)> allowed_tokens;
  // Called on the engine thread for every prompt position, in order and once, with its logits T [vocab];
  // turns prefix reuse off.
  std::function<void(int64_t position, const TensorView& logits)> on_prompt_logits;
};

using Clock = std::chrono::steady_clock;

struct TokenOutput {
  int32_t token = 0;
  float logprob = 0;         // with num_logprobs >= 0
  std::vector<Logprob> top;  // with num_logprobs > 0
  Clock::time_point time;    // when it was sampled
};

// What is new since the last look.
struct ResponseUpdate {
  std::vector<TokenOutput> tokens;
  int64_t num_prefilled = 0;                 // prompt tokens in the cache so far
  int64_t num_cached = 0;                    // of them taken from the prefix cache
  std::optional<Clock::time_point> started;  // when its first step began; none: it waits
  bool done = false;
  FinishReason reason = FinishReason::kStop;  // once done
  int32_t stop_token = -1;                    // the token that ended it, or -1; it is not among `tokens`
  std::string error;                          // with kError
};

// Shared by the engine thread and the consumer; every member but on_change is guarded by mutex_.
class ResponseState {
 public:
  // Room for the whole answer, so that no push allocates. When the request starts to run, not while it waits.
  void reserve(int64_t max_new_tokens);
  void start(Clock::time_point time);  // the first call counts: who is preempted has started
  void push(TokenOutput token);
  void progress(int64_t num_prefilled, int64_t num_cached);
  void finish(FinishReason reason, int32_t stop_token, std::string error);
  ResponseUpdate wait(std::chrono::milliseconds timeout);
  // Called (outside the lock) after each change; for consumers that cannot block. Set before submission. It
  // may still run when the consumer has seen the end, so it owns what it touches; it must not throw.
  std::function<void()> on_change;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenOutput> tokens_;
  size_t num_taken_ = 0;
  int64_t num_prefilled_ = 0;
  int64_t num_cached_ = 0;
  std::optional<Clock::time_point> started_;
  bool progressed_ = false;
  bool done_ = false;
  FinishReason reason_ = FinishReason::kStop;
  int32_t stop_token_ = -1;
  std::string error_;
};

// The consumer's handle. Movable.
class Response {
 public:
  Response(int64_t id, std::shared_ptr<ResponseState> state, std::function<void(int64_t)> cancel)
      : id_(id), state_(std::move(state)), cancel_(std::move(cancel)) {}
  Response(Response&&) = default;
  Response& operator=(Response&& other) noexcept;
  ~Response() { drop(); }

  int64_t id() const { return id_; }
  // Returns as soon as there is something new, or with nothing new after the timeout.
  ResponseUpdate wait(std::chrono::milliseconds timeout) { return state_->wait(timeout); }

 private:
  void drop();

  int64_t id_ = 0;
  std::shared_ptr<ResponseState> state_;
  std::function<void(int64_t)> cancel_;
};

}  // namespace longspan::engine
