// RunningRequest: a generation that the server knows of: listed while it runs, counted and logged at its end.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/metrics.h"

namespace longspan::server {

// A look at a running request.
struct RequestState {
  std::string id;
  std::string route;
  double age_seconds = 0;
  bool started = false;  // it is, or was, part of a step
  PrefillProgress prefill;
  Usage usage;
};

class RunningRequest;

// Thread-safe. Outlives the requests in it.
class RequestList final {
 public:
  std::vector<RequestState> states() const;
  // Cancels every request with this id; how many there were.
  int cancel(const std::string& id);

 private:
  friend class RunningRequest;
  mutable std::mutex mutex_;
  std::list<RunningRequest*> running_;  // guarded by mutex_
};

// Used by one thread; states() and cancel() of its list come from others.
class RunningRequest final {
 public:
  struct Origin {
    std::string id;
    std::string route;
    engine::Clock::time_point arrived;
    bool log_end = true;         // a line when it ends; without prompt and answer
    double timeout_seconds = 0;  // from its arrival; 0: none
  };
  RunningRequest(RequestList& list, Metrics& metrics, Origin origin, engine::Engine& engine,
                 const text::Tokenizer& tokenizer, const GenerationRequest& request);
  ~RunningRequest();  // a request that did not end was left by its client

  std::vector<ChoiceUpdate> next(std::chrono::milliseconds timeout);
  bool done() const { return generation_.done(); }
  Usage usage() const { return generation_.usage(); }
  PrefillProgress progress() const { return generation_.progress(); }
  const PromptScores* prompt_scores(size_t prompt_idx) const { return generation_.prompt_scores(prompt_idx); }
  bool late() const;  // it still runs, and its time is up
  bool has_token() const { return generation_.times().first_token.has_value(); }
  const std::string& id() const { return origin_.id; }

 private:
  friend class RequestList;

  RequestList& list_;
  Metrics& metrics_;
  Origin origin_;
  Generation generation_;
  FinishedRequest end_;
  std::vector<engine::Clock::time_point> last_token_;  // by choice
  std::list<RunningRequest*>::iterator place_;
  mutable std::mutex mutex_;
  RequestState state_;  // guarded by mutex_
};

}  // namespace longspan::server
