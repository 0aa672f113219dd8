#include "engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "core/log.h"

namespace longspan::engine {
namespace {

std::vector<int32_t> stop_ids(const GenerateRequest& request, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> ids = request.stop_token_ids;
  if (!request.ignore_eos) ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void check_ids(const std::vector<int32_t>& ids, int64_t vocab_size, const char* what) {
  for (int32_t id : ids)
    if (id < 0 || id >= vocab_size)
      fail(ErrorKind::kInvalid, "{}: got token id {}, need 0 to {}", what, id, vocab_size - 1);
}

const char* refusal(schedule::Admission admission) {
  switch (admission) {
    case schedule::Admission::kNeverFits:
      return "the request needs more cache pages than there are";
    case schedule::Admission::kQueueFull:
      return "the request queue is full";
    case schedule::Admission::kTooLong:
      return "prompt and answer exceed the maximum context length";
    default:
      return "the request was refused";
  }
}

const char* non_finite_text(DType dtype) {
  return dtype == DType::kF16 ? "the model produced logits that are not finite; float16 ends at 65504, "
                                "bfloat16 (--dtype) does not"
                              : "the model produced logits that are not finite";
}

int64_t ns_of(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

int64_t now_ns() { return ns_of(Clock::now()); }

}  // namespace

struct Engine::Inbox {
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::pair<schedule::SeqId, std::unique_ptr<Live>>> requests;  // guarded by mutex, as all below
  std::vector<schedule::SeqId> cancelled;
  EngineStatus status;
  bool reset_prefix_cache = false;
  std::shared_ptr<StepTrace> trace;  // the next one, where trace_waits
  bool trace_waits = false;
  bool trace_comes = false;  // the thread has it in hand
  std::condition_variable trace_taken;
  bool stop = false;
  bool ended = false;  // the thread is done

  void cancel(schedule::SeqId id) {
    {
      const std::lock_guard lock(mutex);
      if (stop) return;
      cancelled.push_back(id);
    }
    wake.notify_one();
  }
};

Engine::Engine(const EngineOptions& options)
    : options_(options), info_(make_plan(options, Purpose::kRun)), inbox_(std::make_shared<Inbox>()) {
  check_weights(options);
  make_ops(options);
  if (options.on_plan) options.on_plan(info_);
  load_weights(options);
  make_step_state(options);
  warm_up();
  thread_ = std::thread([this] { thread_main(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->stop = true;
  }
  inbox_->wake.notify_one();
  if (thread_.joinable()) thread_.join();
}

Response Engine::submit(GenerateRequest request, std::function<void()> on_change) {
  const auto prompt_len = static_cast<int64_t>(request.prompt.size());
  if (prompt_len == 0) fail(ErrorKind::kInvalid, "the prompt is empty: need at least one token");
  check_ids(request.prompt, info_.config.vocab_size, "prompt");
  check_ids(request.stop_token_ids, info_.config.vocab_size, "stop_token_ids");
  for (const auto& [token, bias] : request.sampling.logit_bias)
    check_ids({token}, info_.config.vocab_size, "logit_bias");
  if (prompt_len >= info_.max_model_len)
    fail(ErrorKind::kInvalid,
         "this model's maximum context length is {} tokens. However, you requested {} tokens in the prompt",
         info_.max_model_len, prompt_len);
  if (request.pin_prefix && prompt_len > options_.max_pinned_tokens)
    fail(ErrorKind::kInvalid, "pin_prefix: got {} tokens, need at most {} (max_pinned_tokens)", prompt_len,
         options_.max_pinned_tokens);
  validate(request.sampling);
  const int64_t room = info_.max_model_len - prompt_len;
  if (request.max_new_tokens <= 0 || request.max_new_tokens > room) request.max_new_tokens = room;

  const schedule::SeqId id = next_id_.fetch_add(1);
  auto state = std::make_shared<ResponseState>();
  state->on_change = std::move(on_change);
  auto live = std::make_unique<Live>();
  live->sampler = SamplerState(request.sampling, request.prompt, info_.config.vocab_size);
  live->stop_ids = stop_ids(request, info_.eos_ids);
  if (request.sampling.min_tokens > 0 && std::ssize(live->stop_ids) == info_.config.vocab_size)
    fail(ErrorKind::kInvalid, "stop_token_ids: got the whole vocabulary, need a token for min_tokens {}",
         request.sampling.min_tokens);
  live->request = std::move(request);
  live->response = state;
  {
    const std::lock_guard lock(inbox_->mutex);
    if (!inbox_->status.healthy) fail(ErrorKind::kEnvironment, "the engine has stopped after an error");
    // Who runs counts too: a burst at an idle server is taken whole, whether or not a step has begun.
    const schedule::SchedulerStats& schedule = inbox_->status.schedule;
    const int64_t num_live =
        std::ssize(inbox_->requests) + schedule.num_waiting + schedule.num_swapped + schedule.num_running;
    if (num_live >= options_.max_num_seqs + options_.max_waiting)
      fail(ErrorKind::kExhausted, "the request queue is full: {} requests run or wait", num_live);
    inbox_->requests.emplace_back(id, std::move(live));
  }
  inbox_->wake.notify_one();
  return Response(id, std::move(state), [inbox = inbox_](int64_t cancelled) { inbox->cancel(cancelled); });
}

EngineStatus Engine::status() const {
  const int64_t started = step_started_ns_.load();
  const std::lock_guard lock(inbox_->mutex);
  EngineStatus status = inbox_->status;
  status.num_inbox = static_cast<int64_t>(inbox_->requests.size());
  if (started != 0) status.stalled_seconds = static_cast<double>(now_ns() - started) * 1e-9;
  return status;
}

void Engine::reset_prefix_cache() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->reset_prefix_cache = true;
  }
  inbox_->wake.notify_one();
}

bool Engine::set_trace(std::shared_ptr<StepTrace> trace, std::chrono::milliseconds timeout) {
  std::unique_lock lock(inbox_->mutex);
  const bool starts = trace != nullptr;
  const auto taken = [&] { return inbox_->ended || !inbox_->trace_waits; };
  inbox_->trace = std::move(trace);
  inbox_->trace_waits = true;
  inbox_->wake.notify_one();
  if (!inbox_->trace_taken.wait_for(lock, timeout, taken)) {
    if (!inbox_->trace_comes) {
      inbox_->trace_waits = false;
      inbox_->trace = nullptr;
      return false;
    }
    inbox_->trace_taken.wait(lock, taken);
  }
  if (starts && inbox_->ended) fail(ErrorKind::kEnvironment, "the engine has stopped");
  return true;  // of an engine that has stopped the last trace ended with it
}

// ---- engine thread ----

void Engine::thread_main() {
  for (;;) {
    if (trace_ && !scheduler_->has_work()) trace_->idle();
    {
      std::unique_lock lock(inbox_->mutex);
      inbox_->wake.wait(lock, [&] {
        return inbox_->stop || !inbox_->requests.empty() || !inbox_->cancelled.empty() ||
               inbox_->reset_prefix_cache || inbox_->trace_waits || scheduler_->has_work();
      });
      if (inbox_->stop) break;
    }
    enter(Phase::kScheduling);
    try {
      take_inbox();
      if (scheduler_->has_work())
        step();
      else
        update_status();
    } catch (const std::exception& error) {
      fail_all(error.what());
      leave_trace();
      return;
    }
  }
  finish_all(FinishReason::kCancelled, "");
  leave_trace();
}

void Engine::take_inbox() {
  std::vector<std::pair<schedule::SeqId, std::unique_ptr<Live>>> requests;
  std::vector<schedule::SeqId> cancelled;
  std::shared_ptr<StepTrace> trace;
  bool reset = false, trace_changes = false;
  {
    const std::lock_guard lock(inbox_->mutex);
    trace_changes = inbox_->trace_comes = inbox_->trace_waits;
    trace.swap(inbox_->trace);
    requests.swap(inbox_->requests);
    cancelled.swap(inbox_->cancelled);
    inbox_->status.schedule.num_waiting += static_cast<int32_t>(requests.size());  // submit() counts them
    reset = std::exchange(inbox_->reset_prefix_cache, false);
  }
  if (trace_changes) take_trace(std::move(trace));
  if (reset) forget_prefixes();
  for (auto& [id, live] : requests) admit(id, std::move(live));
  for (schedule::SeqId id : cancelled)
    if (live_.contains(id)) {
      scheduler_->cancel(id);
      end(id, FinishReason::kCancelled);
    }
}

void Engine::take_trace(std::shared_ptr<StepTrace> trace) {
  backend_->observe(nullptr);
  backend_->synchronize();  // a window holds what its own operations do on a device, and all of that
  if (trace_) trace_->end();
  trace_ = std::move(trace);
  if (trace_) {
    backend_->observe(trace_.get());
    trace_->begin();
    for (const auto& [id, live] : live_)
      if (const schedule::Sequence* sequence = scheduler_->find(id))
        trace_->admitted(sequence->num_prompt, /*before_window=*/true);
  }
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->trace_waits = inbox_->trace_comes = false;
  }
  inbox_->trace_taken.notify_all();
}

// The thread ends, and with it the trace.
void Engine::leave_trace() {
  backend_->observe(nullptr);
  if (trace_) trace_->end();
  trace_ = nullptr;
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->trace = nullptr;
    inbox_->ended = true;
  }
  inbox_->trace_taken.notify_all();
}

void Engine::admit(schedule::SeqId id, std::unique_ptr<Live> live) {
  if (trace_) trace_->admitted(std::ssize(live->request.prompt), /*before_window=*/false);
  std::vector<int32_t> prompt =
      live->request.pin_prefix ? live->request.prompt : std::move(live->request.prompt);
  schedule::Request request{.id = id,
                            .prompt = std::move(prompt),
                            .max_new_tokens = live->request.max_new_tokens,
                            .priority = live->request.priority,
                            .cache_salt = live->request.cache_salt,
                            .share_prefix = live->request.on_prompt_logits == nullptr};
  const schedule::Admission admission = scheduler_->add(std::move(request));
  live_[id] = std::move(live);
  if (admission != schedule::Admission::kAccepted) end(id, FinishReason::kError, refusal(admission));
}

void Engine::step() {
  const schedule::StepPlan& plan = scheduler_->plan_step(speed_.prefill_limit(options_.max_decode_stall_ms));
  if (plan.empty()) fail(ErrorKind::kExhausted, "requests wait, but none of them can run");  // else: for ever
  publish_schedule();
  const int64_t num_non_finite = num_non_finite_;
  const Clock::time_point started = Clock::now();
  step_started_ns_.store(now_ns());
  const StepShape shape = shape_of(plan);
  enter(Phase::kCopies);
  run_copies(plan);
  start_answers(plan, started);
  enter(Phase::kInputs);
  const auto wants_all = [&](schedule::SeqId id) {
    return live_.at(id)->request.on_prompt_logits != nullptr;
  };
  const model::StepInputs& inputs = batch_->build(plan, *scheduler_, wants_all, layer_tap_);
  const model::StepInputs& mirrored =
      mirror_->update(inputs, {.steady = batch_->is_steady(), .chosen_token = chosen_token_});
  enter(Phase::kForward);
  const StepOutput output = compute(mirrored);
  enter(Phase::kSampling);
  sample_rows(plan, inputs, output);
  enter(Phase::kPublishing);
  publish_progress(plan);

  speed_.add(work_of(plan), std::chrono::duration<double, std::milli>(Clock::now() - started).count());
  const std::span<const schedule::Finished> finished = scheduler_->complete(sampled_);
  // What a request with NaN logits left in the cache may be as bad.
  if (num_non_finite_ > num_non_finite) forget_prefixes();
  if (!finished.empty()) look_for_saturation();
  step_started_ns_.store(0);
  if (trace_) trace_->step_done(shape, ns_of(started));
  update_status();  // before the consumers hear of it: who looks then sees the whole step
  for (const schedule::Finished& one : finished)
    if (live_.contains(one.id))  // else ended by an error
      end(one.id,
          one.reason == schedule::FinishReason::kLength ? FinishReason::kLength : FinishReason::kStop);
}

StepShape Engine::shape_of(const schedule::StepPlan& plan) {
  const StepShape shape{.prompt_tokens = plan.num_tokens - plan.num_decode_seqs,
                        .decode_tokens = plan.num_decode_seqs,
                        .num_seqs = std::ssize(plan.seqs),
                        .cold = plan.num_tokens - plan.num_decode_seqs > largest_step_.prompt_tokens ||
                                plan.num_decode_seqs > largest_step_.decode_tokens};
  largest_step_.prompt_tokens = std::max(largest_step_.prompt_tokens, shape.prompt_tokens);
  largest_step_.decode_tokens = std::max(largest_step_.decode_tokens, shape.decode_tokens);
  return shape;
}

void Engine::run_copies(const schedule::StepPlan& plan) {
  storage_->swap_out(plan.swap_out);
  storage_->swap_in(plan.swap_in);
  storage_->copy_pages(plan.copies);
  for (size_t group = 0; group < info_.page_plan.groups.size(); ++group)
    scheduler_->table(static_cast<int32_t>(group)).commit([](int32_t, std::span<const int32_t>) {
    });  // host memory is the device's
}

// Who prefills starts now, or did so before: its answer gets its memory.
void Engine::start_answers(const schedule::StepPlan& plan, Clock::time_point time) {
  for (const schedule::PlannedSeq& seq : plan.seqs) {
    if (!seq.is_prefill) continue;
    Live& live = *live_.at(seq.id);
    live.response->reserve(live.request.max_new_tokens);
    live.response->start(time);
  }
}

StepOutput Engine::compute(const model::StepInputs& inputs) {
  struct Call {
    Engine& engine;
    const model::StepInputs& inputs;
  } call{*this, inputs};
  const auto run = [&call] {  // one reference: std::function keeps it without memory of its own
    model::Model& model = *call.engine.model_;
    const InputMirror& mirror = *call.engine.mirror_;
    if (mirror.is_behind()) mirror.advance(*call.engine.ops_, model.chosen_tokens().rows(0, 1));
    StepOutput output{.hidden = model.forward(call.inputs, call.engine.storage_->views())};
    const Index num_rows = std::min(kLogitRows, output.hidden.dim(0));
    if (num_rows > 0) output.logits = model.logits(output.hidden.rows(0, num_rows));
    return output;
  };
  const InputWriter writer = mirror_->is_behind() ? InputWriter::kDevice : InputWriter::kHost;
  return trace_ && !trace_->times_kernels() ? run() : replay_->run(inputs, writer, run);
}

std::optional<HostSampling> Engine::host_sampling_of(const schedule::StepPlan& plan) const {
  if (ops_->memory().is_host()) return HostSampling::kNoDevice;
  if (plan.num_decode_seqs != std::ssize(plan.seqs)) return HostSampling::kPrefill;
  if (plan.num_decode_seqs > kLogitRows) return HostSampling::kTooMany;
  for (const schedule::PlannedSeq& seq : plan.seqs) {
    if (!seq.sample) return HostSampling::kNotSampled;
    const Live& live = *live_.at(seq.id);
    const bool constrained = live.request.allowed_tokens != nullptr;
    if (const auto why = engine::host_sampling_of(live.request.sampling, live.sampler, constrained))
      return why;
  }
  return std::nullopt;
}

void Engine::sample_on_device(const schedule::StepPlan& plan, const TensorView& logits) {
  draw_rows_.clear();
  for (const schedule::PlannedSeq& seq : plan.seqs) {
    const Live& live = *live_.at(seq.id);
    draw_rows_.push_back(draw_row(live.request.sampling, live.sampler));
  }
  const std::span<const int32_t> chosen = device_sampler_->choose(logits, draw_rows_);
  if (chosen.size() == 1) chosen_token_ = chosen.front();
  for (size_t i = 0; i < chosen.size(); ++i)
    accept(plan.seqs[i], *live_.at(plan.seqs[i].id), {.token = chosen[i], .finite = chosen[i] >= 0});
}

void Engine::sample_rows(const schedule::StepPlan& plan, const model::StepInputs& inputs,
                         const StepOutput& output) {
  sampled_.clear();
  chosen_token_ = -1;
  const TensorView& hidden = output.hidden;
  const std::optional<HostSampling> why_host = host_sampling_of(plan);
  if (!why_host) return sample_on_device(plan, output.logits);
  device_sampler_->left_to_host(*why_host);
  const int32_t* rows = inputs.logit_rows.as<int32_t>();
  const int32_t* starts = inputs.seqs.query_start_loc.as<int32_t>();
  const Index num_logits = hidden.dim(0);
  size_t seq_idx = 0;
  TensorView logits;
  for (Index i = 0; i < num_logits; ++i) {
    const Index slice = i % kLogitRows;
    if (slice == 0)
      logits = model_->to_host(i == 0 ? output.logits
                                      : model_->logits(hidden.rows(i, std::min(kLogitRows, num_logits - i))));
    while (starts[seq_idx + 1] <= rows[i]) ++seq_idx;
    const schedule::PlannedSeq& seq = plan.seqs[seq_idx];
    Live& live = *live_.at(seq.id);
    const TensorView row(logits.rows(slice, 1).data, logits.dtype, {info_.config.vocab_size});
    const Index offset = rows[i] - starts[seq_idx];
    // A replay computes the prompt again: each position is delivered once.
    if (live.request.on_prompt_logits && seq.is_prefill &&
        seq.context_len + offset == live.num_prompt_logits) {
      live.request.on_prompt_logits(live.num_prompt_logits, row);
      ++live.num_prompt_logits;
    }
    if (seq.sample && offset + 1 == seq.q_len) sample_row(seq, live, row);
  }
}

void Engine::sample_row(const schedule::PlannedSeq& seq, Live& live, const TensorView& logits) {
  static const std::vector<int32_t> kNone;
  std::span<const uint64_t> allowed;
  if (live.request.allowed_tokens) allowed = live.request.allowed_tokens(live.sampler.last_accepted());
  const bool too_short = allowed.empty() && live.sampler.num_accepted() < live.request.sampling.min_tokens;
  accept(seq, live,
         sampler_->sample(logits, live.request.sampling, live.sampler,
                          {.ruled_out = too_short ? live.stop_ids : kNone, .allowed = allowed}));
}

void Engine::accept(const schedule::PlannedSeq& seq, Live& live, SampledToken token) {
  if (!token.finite) {
    ++num_non_finite_;
    sampled_.push_back({seq.id, 0, true});
    end(seq.id, FinishReason::kError, non_finite_text(info_.dtype));
    return;
  }
  const bool stop = std::binary_search(live.stop_ids.begin(), live.stop_ids.end(), token.token);
  live.sampler.accept(token.token);
  sampled_.push_back({seq.id, token.token, stop});
  if (stop) {
    live.stop_token = token.token;
  } else {
    ++num_generated_tokens_;
    live.response->push({token.token, token.logprob, std::move(token.top), Clock::now()});
  }
}

void Engine::publish_progress(const schedule::StepPlan& plan) {
  for (const schedule::PlannedSeq& seq : plan.seqs) {
    if (!seq.is_prefill) continue;
    const auto found = live_.find(seq.id);
    const schedule::Sequence* sequence = scheduler_->find(seq.id);
    if (found != live_.end() && sequence != nullptr)
      found->second->response->progress(seq.context_len + seq.q_len, sequence->num_cached);
  }
}

void Engine::end(schedule::SeqId id, FinishReason reason, std::string error) {
  const auto found = live_.find(id);
  if (found->second->request.pin_prefix && reason != FinishReason::kError) pin(found->second->request);
  found->second->response->finish(reason, found->second->stop_token, std::move(error));
  live_.erase(found);
}

void Engine::pin(const GenerateRequest& request) {
  cache::PrefixIndex* index = scheduler_->memory().index();
  const bool pinned = index && index->pin(request.cache_salt, request.prompt);
  log(pinned ? LogLevel::kInfo : LogLevel::kWarn, "prefix of a prompt of {} tokens: {}",
      request.prompt.size(), pinned ? "pinned" : "not pinned, as the cache keeps nothing of it");
}

// Calls the consumers outside the lock: they may drop their response, which takes it.
void Engine::finish_all(FinishReason reason, const std::string& error) {
  std::vector<std::pair<schedule::SeqId, std::unique_ptr<Live>>> requests;
  {
    const std::lock_guard lock(inbox_->mutex);
    requests.swap(inbox_->requests);
  }
  for (auto& [id, live] : live_) live->response->finish(reason, -1, error);
  for (auto& [id, live] : requests) live->response->finish(reason, -1, error);
  live_.clear();
}

void Engine::fail_all(const std::string& error) {
  log(LogLevel::kError, "the engine step failed: {}", error);
  step_started_ns_.store(0);
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->status.healthy = false;  // from here on submit() refuses
    inbox_->status.schedule.num_running = inbox_->status.schedule.num_waiting = 0;
  }
  finish_all(FinishReason::kError, error);
}

void Engine::forget_prefixes() {
  if (cache::PrefixIndex* index = scheduler_->memory().index()) index->clear();
}

// At the end of requests, not at every step: on a device the count must be waited for.
void Engine::look_for_saturation() {
  num_kv_saturated_ = storage_->num_saturated();
  if (num_kv_saturated_ > 0 && !std::exchange(told_saturation_, true))
    log(LogLevel::kWarn,
        "K and V: {} elements were larger than fp8_e4m3 holds (448 times the scale) and were stored as that",
        num_kv_saturated_);
}

// Who runs and who waits, as of the step that begins; the rest follows at its end.
void Engine::publish_schedule() {
  const schedule::SchedulerStats schedule = scheduler_->stats();
  const std::lock_guard lock(inbox_->mutex);
  inbox_->status.schedule = schedule;
}

void Engine::update_status() {
  const schedule::SchedulerStats schedule = scheduler_->stats();
  const cache::CacheMemory& memory = scheduler_->memory();
  const cache::PrefixIndex* index = memory.index();
  const std::lock_guard lock(inbox_->mutex);
  EngineStatus& status = inbox_->status;
  status.schedule = schedule;
  status.pages = memory.pages().stats();
  if (index) status.prefix = index->stats();
  status.num_cached_pages = memory.pages().num_reclaimable();
  status.dispatch = dispatcher_->counters();
  status.inputs = batch_->counters();
  status.mirror = mirror_->counters();
  status.sampling = device_sampler_->counters();
  status.replays = replay_->counters();
  status.num_generated_tokens = num_generated_tokens_;
  status.num_non_finite = num_non_finite_;
  status.num_kv_saturated = num_kv_saturated_;
  status.prefill_tokens_per_second = speed_.prefill_tokens_per_second();
}

}  // namespace longspan::engine
