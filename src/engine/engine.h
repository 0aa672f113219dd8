// Engine: a model with its cache and schedule, and the one thread that drives them: plan -> inputs -> forward
// -> sample -> publish. submit(), status() and reset_prefix_cache() may be called from any thread; all
// mutable cache and scheduling state belongs to the engine thread.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/page_plan.h"
#include "engine/cache_storage.h"
#include "engine/decode_replay.h"
#include "engine/device_sampler.h"
#include "engine/dispatch.h"
#include "engine/input_batch.h"
#include "engine/input_mirror.h"
#include "engine/plan.h"
#include "engine/response.h"
#include "engine/sampler.h"
#include "engine/step_speed.h"
#include "engine/step_trace.h"
#include "io/generation_config.h"
#include "io/model_config.h"
#include "model/model.h"
#include "schedule/scheduler.h"

namespace longspan::engine {

struct EngineStatus {
  bool healthy = true;         // false: a step died; nothing is served any more
  double stalled_seconds = 0;  // of the step under way
  schedule::SchedulerStats schedule;
  cache::PoolStats pages;
  cache::PrefixStats prefix;     // zero without prefix caching
  int32_t num_cached_pages = 0;  // of the used pages: held by the prefix index alone
  DispatchCounters dispatch;
  InputCounters inputs;
  MirrorCounters mirror;
  SamplingCounters sampling;
  ReplayCounters replays;
  int64_t num_inbox = 0;
  int64_t num_generated_tokens = 0;
  int64_t num_non_finite = 0;            // requests ended by NaN logits
  int64_t num_kv_saturated = 0;          // elements of K and V beyond what FP8 holds, by ended requests
  double prefill_tokens_per_second = 0;  // of steps that only prefill, smoothed
};

class Engine final {
 public:
  // Loads, plans, warms up and starts the thread. Throws Error of any kind.
  explicit Engine(const EngineOptions& options);
  ~Engine();  // ends every request (kCancelled), then the thread
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const EngineInfo& info() const { return info_; }
  bool on_device() const { return options_.device == DeviceKind::kDevice; }  // operations outlive their calls

  // Throws kInvalid (empty prompt, ids outside the vocabulary, longer than the context, sampling out of
  // range), kExhausted (queue full) or kEnvironment (the engine has stopped).
  Response submit(GenerateRequest request, std::function<void()> on_change = nullptr);
  EngineStatus status() const;
  // Forgets every cached prefix before the next step; running requests keep their pages. Any thread.
  void reset_prefix_cache();

  // The engine thread tells `trace` all that it does from here on; null: no longer, and the last one ends. On
  // return that has happened: at once while idle, else when the step under way is done. False: it did not
  // within `timeout`, and will not. Any thread, one at a time.
  bool set_trace(std::shared_ptr<StepTrace> trace, std::chrono::milliseconds timeout);

  // Debugging aid for tests and verify: set while no request is live.
  void set_layer_tap(std::function<void(Index, const TensorView&)> tap) { layer_tap_ = std::move(tap); }

 private:
  struct Live {
    GenerateRequest request;
    SamplerState sampler;
    std::vector<int32_t> stop_ids;  // sorted; empty with ignore_eos and no stop_token_ids
    std::shared_ptr<ResponseState> response;
    int32_t stop_token = -1;
    int64_t num_prompt_logits = 0;  // positions that on_prompt_logits has had
  };

  // What other threads hand to the engine thread; defined in engine.cc.
  struct Inbox;

  void check_weights(const EngineOptions& options);
  void make_ops(const EngineOptions& options);
  void load_weights(const EngineOptions& options);
  void make_step_state(const EngineOptions& options);
  void make_scheduler();
  void warm_up();
  void thread_main();
  void take_inbox();
  void take_trace(std::shared_ptr<StepTrace> trace);
  void leave_trace();
  void enter(Phase phase) {
    if (trace_) trace_->enter(phase);
  }
  StepShape shape_of(const schedule::StepPlan& plan);  // of the next step; remembers the largest
  void admit(schedule::SeqId id, std::unique_ptr<Live> live);
  void step();
  void run_copies(const schedule::StepPlan& plan);
  void start_answers(const schedule::StepPlan& plan, Clock::time_point time);
  StepOutput compute(const model::StepInputs& inputs);
  void sample_rows(const schedule::StepPlan& plan, const model::StepInputs& inputs, const StepOutput& output);
  std::optional<HostSampling> host_sampling_of(const schedule::StepPlan& plan) const;
  void sample_on_device(const schedule::StepPlan& plan, const TensorView& logits);
  void sample_row(const schedule::PlannedSeq& seq, Live& live, const TensorView& logits);
  void accept(const schedule::PlannedSeq& seq, Live& live, SampledToken token);
  void publish_progress(const schedule::StepPlan& plan);
  void end(schedule::SeqId id, FinishReason reason, std::string error = "");
  void pin(const GenerateRequest& request);
  void finish_all(FinishReason reason, const std::string& error);
  void fail_all(const std::string& error);
  void forget_prefixes();
  void look_for_saturation();
  void publish_schedule();
  void update_status();

  EngineOptions options_;
  EngineInfo info_;
  std::unique_ptr<ops::Ops> ops_;
  ops::ObservedBackend* backend_ = nullptr;  // behind ops_
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<CacheStorage> storage_;
  std::unique_ptr<schedule::Scheduler> scheduler_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<InputBatch> batch_;
  std::unique_ptr<InputMirror> mirror_;
  std::unique_ptr<DecodeReplay> replay_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DeviceSampler> device_sampler_;
  std::function<void(Index, const TensorView&)> layer_tap_;

  // Engine thread only.
  std::unordered_map<schedule::SeqId, std::unique_ptr<Live>> live_;
  std::vector<schedule::Sampled> sampled_;
  std::vector<ops::DrawRow> draw_rows_;  // of the step
  int32_t chosen_token_ = -1;            // of a step of one row, where the device chose it
  StepSpeed speed_;                      // learns from the warm-up first: a low guess, soon corrected
  int64_t num_generated_tokens_ = 0;
  int64_t num_kv_saturated_ = 0;
  bool told_saturation_ = false;
  int64_t num_non_finite_ = 0;
  StepShape largest_step_;            // in each of its numbers, since the warm-up
  std::shared_ptr<StepTrace> trace_;  // null: nobody looks

  std::shared_ptr<Inbox> inbox_;  // outlives the engine in the handles of its responses
  std::atomic<int64_t> next_id_{1};
  std::atomic<int64_t> step_started_ns_{0};  // 0: no step under way
  std::thread thread_;
};

}  // namespace longspan::engine
