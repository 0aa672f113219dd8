#include "server/running_request.h"

#include "core/log.h"

namespace longspan::server {
namespace {

double seconds_between(engine::Clock::time_point from, engine::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// The lengths of what was reached: waiting, prefill, decode.
void note_times(FinishedRequest& end, const GenerationTimes& times, engine::Clock::time_point arrived) {
  if (times.started) end.queue_seconds = seconds_between(times.submitted, *times.started);
  if (!times.started || !times.first_token) return;
  end.ttft_seconds = seconds_between(arrived, *times.first_token);
  end.prefill_seconds = seconds_between(*times.started, *times.first_token);
  end.decode_seconds = seconds_between(*times.first_token, *times.last_token);
}

}  // namespace

std::vector<RequestState> RequestList::states() const {
  const std::lock_guard lock(mutex_);
  std::vector<RequestState> states;
  const auto now = engine::Clock::now();
  for (const RunningRequest* request : running_) {
    const std::lock_guard request_lock(request->mutex_);
    states.push_back(request->state_);
    states.back().age_seconds = seconds_between(request->origin_.arrived, now);
  }
  return states;
}

int RequestList::cancel(const std::string& id) {
  const std::lock_guard lock(mutex_);
  int count = 0;
  for (RunningRequest* request : running_) {
    if (request->origin_.id != id) continue;
    request->generation_.cancel();
    ++count;
  }
  return count;
}

RunningRequest::RunningRequest(RequestList& list, Metrics& metrics, Origin origin, engine::Engine& engine,
                               const text::Tokenizer& tokenizer, const GenerationRequest& request)
    : list_(list),
      metrics_(metrics),
      origin_(std::move(origin)),
      generation_(engine, tokenizer, request),
      last_token_(request.prompts.size() * static_cast<size_t>(request.num_choices)),
      state_{.id = origin_.id, .route = origin_.route} {
  end_.reason = FinishReason::kCancelled;
  state_.prefill = generation_.progress();
  state_.usage = generation_.usage();
  const std::lock_guard lock(list_.mutex_);
  place_ = list_.running_.insert(list_.running_.end(), this);
}

RunningRequest::~RunningRequest() {
  {
    const std::lock_guard lock(list_.mutex_);
    list_.running_.erase(place_);
  }
  const auto now = engine::Clock::now();
  end_.usage = generation_.usage();
  end_.total_seconds = seconds_between(origin_.arrived, now);
  note_times(end_, generation_.times(), origin_.arrived);
  metrics_.record(end_);
  if (!origin_.log_end) return;
  const Usage& usage = end_.usage;
  const double decode_seconds = end_.total_seconds - std::max(end_.ttft_seconds, 0.0);
  log(LogLevel::kInfo,
      "{} {}: {} prompt tokens ({} cached), {} answer tokens, queued {:.0f} ms, first after {:.3f} s, {:.1f} "
      "tokens/s, {:.3f} s, {}",
      origin_.route, origin_.id, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
      1e3 *
          (end_.queue_seconds < 0 ? seconds_between(generation_.times().submitted, now) : end_.queue_seconds),
      std::max(end_.ttft_seconds, 0.0),
      usage.completion_tokens > 1
          ? static_cast<double>(usage.completion_tokens - 1) / std::max(decode_seconds, 1e-9)
          : 0.0,
      end_.total_seconds, reason_label(end_.reason));
}

bool RunningRequest::late() const {
  return !done() && origin_.timeout_seconds > 0 &&
         seconds_between(origin_.arrived, engine::Clock::now()) >= origin_.timeout_seconds;
}

std::vector<ChoiceUpdate> RunningRequest::next(std::chrono::milliseconds timeout) {
  std::vector<ChoiceUpdate> updates = generation_.next(timeout);
  for (const ChoiceUpdate& update : updates) {
    auto& last = last_token_[static_cast<size_t>(update.index)];
    for (const engine::TokenOutput& token : update.tokens) {
      if (last != engine::Clock::time_point()) end_.inter_token.add(seconds_between(last, token.time));
      last = token.time;
    }
    if (update.finish) end_.reason = update.finish->reason;
  }
  const std::lock_guard lock(mutex_);
  state_.prefill = generation_.progress();
  state_.usage = generation_.usage();
  state_.started = generation_.times().started.has_value();
  return updates;
}

}  // namespace longspan::server
