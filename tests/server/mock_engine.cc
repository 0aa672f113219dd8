#include "server/mock_engine.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>

#include "core/error.h"

namespace longspan::testing {
namespace {

MockScript script_from_environment() {
  MockScript script;
  const char* text = std::getenv("MOCK_ENGINE");
  if (!text) return script;
  const auto json = nlohmann::json::parse(text);
  for (const auto& [key, value] : json.items()) {
    if (key == "tokens_per_second")
      script.tokens_per_second = value;
    else if (key == "prefill_tokens_per_second")
      script.prefill_tokens_per_second = value;
    else if (key == "chunk_tokens")
      script.chunk_tokens = value;
    else if (key == "stall_seconds")
      script.stall_seconds = value;
    else if (key == "tokens")
      script.tokens = value.get<std::vector<int32_t>>();
    else if (key == "stop_after")
      script.stop_after = value;
    else
      fail(ErrorKind::kInvalid, "MOCK_ENGINE: unknown key '{}'", key);
  }
  if (script.tokens_per_second <= 0 || script.chunk_tokens <= 0 || script.tokens.empty())
    fail(ErrorKind::kInvalid, "MOCK_ENGINE: need tokens, tokens_per_second and chunk_tokens above 0");
  return script;
}

}  // namespace

MockScript& mock_script() {
  static MockScript script = script_from_environment();
  return script;
}

}  // namespace longspan::testing

namespace longspan::engine {

using testing::mock_script;
using testing::MockScript;

// Everything behind one mutex: nothing here takes long.
struct Engine::Inbox {
  struct Mocked {
    GenerateRequest request;
    std::shared_ptr<ResponseState> response;
    int64_t num_prefilled = 0;
    int64_t num_tokens = 0;
  };
  struct Event {  // the next chunk or token of a request is due
    Clock::time_point time;
    int64_t id;
    bool operator>(const Event& other) const { return time > other.time; }
  };

  std::mutex mutex;
  std::condition_variable wake;
  std::map<int64_t, Mocked> live;  // guarded by mutex, as all below
  std::deque<int64_t> waiting;
  std::set<int64_t> running;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  Clock::time_point stalled_until;
  EngineStatus status;
  bool stop = false;

  void end(int64_t id, FinishReason reason) {
    live.at(id).response->finish(reason, -1, "");
    live.erase(id);
    running.erase(id);
    std::erase(waiting, id);
  }

  void start_waiting(int32_t max_running, const MockScript& script) {
    while (!waiting.empty() && std::ssize(running) < max_running) {
      const int64_t id = waiting.front();
      waiting.pop_front();
      running.insert(id);
      const auto stall = std::chrono::duration<double>(script.stall_seconds);
      const auto now = Clock::now();
      live.at(id).response->start(now);
      const auto due = now + std::chrono::duration_cast<Clock::duration>(stall);
      if (script.stall_seconds > 0) stalled_until = std::max(stalled_until, due);
      events.push({due, id});
    }
  }

  // One chunk of the prompt or one token; seconds until the next is due, none when the answer has ended.
  std::optional<double> advance(Mocked& one, const MockScript& script) {
    const auto prompt_len = std::ssize(one.request.prompt);
    if (one.num_prefilled < prompt_len) {
      const int64_t chunk = std::min(script.chunk_tokens, prompt_len - one.num_prefilled);
      one.num_prefilled += chunk;
      status.schedule.num_prefill_tokens += chunk;
      one.response->progress(one.num_prefilled, 0);
      return script.prefill_tokens_per_second > 0
                 ? static_cast<double>(chunk) / script.prefill_tokens_per_second
                 : 0;
    }
    const auto now = Clock::now();
    const auto at = static_cast<size_t>(one.num_tokens % std::ssize(script.tokens));
    if (script.on_token) script.on_token(one.request.sampling.seed.value_or(0), one.num_tokens, now);
    one.response->push({.token = script.tokens[at], .time = now});
    ++one.num_tokens;
    ++status.schedule.num_decode_tokens;
    ++status.num_generated_tokens;
    const bool ended = one.num_tokens == script.stop_after || one.num_tokens == one.request.max_new_tokens;
    return ended ? std::nullopt : std::optional(1 / script.tokens_per_second);
  }
};

Engine::Engine(const EngineOptions& options)
    : options_(options), info_(make_plan(options, Purpose::kRun)), inbox_(std::make_shared<Inbox>()) {
  info_.device = "mock";
  if (options.on_plan) options.on_plan(info_);
  inbox_->status.pages.num_pages = inbox_->status.pages.num_free = info_.memory.num_pages;
  thread_ = std::thread([this] { thread_main(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->stop = true;
  }
  inbox_->wake.notify_one();
  thread_.join();
}

Response Engine::submit(GenerateRequest request, std::function<void()> on_change) {
  const int64_t room = info_.max_model_len - std::ssize(request.prompt);
  if (request.max_new_tokens <= 0 || request.max_new_tokens > room) request.max_new_tokens = room;
  const int64_t id = next_id_.fetch_add(1);
  auto state = std::make_shared<ResponseState>();
  state->on_change = std::move(on_change);
  {
    const std::lock_guard lock(inbox_->mutex);
    if (std::ssize(inbox_->waiting) >= options_.max_waiting)
      fail(ErrorKind::kExhausted, "the request queue is full: {} requests wait", options_.max_waiting);
    inbox_->live[id] = {.request = std::move(request), .response = state};
    inbox_->waiting.push_back(id);
  }
  inbox_->wake.notify_one();
  return Response(id, std::move(state), [inbox = inbox_](int64_t cancelled) {
    const std::lock_guard lock(inbox->mutex);
    if (inbox->live.contains(cancelled)) inbox->end(cancelled, FinishReason::kCancelled);
    inbox->wake.notify_one();
  });
}

EngineStatus Engine::status() const {
  const std::lock_guard lock(inbox_->mutex);
  EngineStatus status = inbox_->status;
  status.schedule.num_running = static_cast<int32_t>(inbox_->running.size());
  status.schedule.num_waiting = static_cast<int32_t>(inbox_->waiting.size());
  status.pages.num_free = std::max(0, status.pages.num_pages - status.schedule.num_running);
  const std::chrono::duration<double> left = inbox_->stalled_until - Clock::now();
  if (left.count() > 0) status.stalled_seconds = std::max(0.0, mock_script().stall_seconds - left.count());
  return status;
}

void Engine::reset_prefix_cache() {}

bool Engine::set_trace(std::shared_ptr<StepTrace>, std::chrono::milliseconds) {
  fail(ErrorKind::kUnsupported, "the mock runs no steps");
}

void Engine::thread_main() {
  const MockScript& script = mock_script();
  std::unique_lock lock(inbox_->mutex);
  while (!inbox_->stop) {
    inbox_->start_waiting(options_.max_num_seqs, script);
    if (inbox_->events.empty()) {
      inbox_->wake.wait(lock);
      continue;
    }
    const Inbox::Event next = inbox_->events.top();
    if (next.time > Clock::now()) {
      inbox_->wake.wait_until(lock, next.time);
      continue;
    }
    inbox_->events.pop();
    const auto found = inbox_->live.find(next.id);
    if (found == inbox_->live.end()) continue;  // cancelled
    const auto seconds = inbox_->advance(found->second, script);
    if (!seconds)
      inbox_->end(next.id, found->second.num_tokens == script.stop_after ? FinishReason::kStop
                                                                         : FinishReason::kLength);
    else  // by the schedule, not by the clock: a late token does not delay those behind it
      inbox_->events.push(
          {next.time + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*seconds)),
           next.id});
  }
  while (!inbox_->live.empty()) inbox_->end(inbox_->live.begin()->first, FinishReason::kCancelled);
}

}  // namespace longspan::engine
