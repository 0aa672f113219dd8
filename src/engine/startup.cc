// What happens between the plan and the engine thread: weights, the memory of a step, one warm-up request.
#include <algorithm>

#include "core/log.h"
#include "engine/engine.h"
#include "io/quantized_linear.h"
#include "io/weight_layout.h"
#include "ops/cpu/backend.h"
#include "ops/device/backend.h"
#include "ops/reference/backend.h"

namespace longspan::engine {
namespace {

std::unique_ptr<ops::Backend> plain_backend(const EngineOptions& options, const EngineInfo& info) {
  if (options.device == DeviceKind::kReference) return ops::reference::make_backend();
  if (options.device == DeviceKind::kDevice) {
    ops::device::BackendOptions device = device_options(options);
    device.unpacked_kv_bytes = info.unpacked_kv_bytes;
    return ops::device::make_backend(options.device_index, device);
  }
  return ops::cpu::make_backend({.num_threads = options.num_threads});
}

std::unique_ptr<ops::Backend> make_backend(const EngineOptions& options, const EngineInfo& info) {
  auto backend = plain_backend(options, info);
  return options.wrap_backend ? options.wrap_backend(std::move(backend)) : std::move(backend);
}

cache::CacheCapacity capacity_of(const EngineInfo& info, int64_t max_pinned_tokens) {
  cache::CacheCapacity capacity{.num_pages = info.memory.num_pages,
                                .num_state_slots = info.memory.num_state_slots,
                                .num_host_pages = info.swap.num_pages,
                                .num_host_slots = info.swap.num_state_slots};
  if (max_pinned_tokens == 0) return capacity;
  const int32_t num_states = info.page_plan.num_state_groups();
  const bool own_slots = info.page_plan.layout == cache::Layout::kSplit;
  capacity.max_pinned_pages =
      static_cast<int32_t>(info.page_plan.pages_for(max_pinned_tokens)) + (own_slots ? 0 : num_states);
  capacity.max_pinned_slots = own_slots ? num_states : 0;
  return capacity;
}

// Forms of quantisation this build does not read are refused here, before anything is said of a model that
// runs. What the config says of a layer and the tensors do not bear out is only told: the tensors win.
void check_quantisation(const io::ModelConfig& config, const io::TensorStore& store) {
  const io::QuantSurvey survey =
      io::survey_quantisation(store, config.quantization, io::detect_weight_layout(store, config).text);
  if (survey.quantised.empty() && !config.quantization.quantised()) return;
  log(LogLevel::kInfo, "quantised weights: {}", survey.quantised.empty() ? "none" : survey.describe());
  const auto tell = [&](const std::vector<std::string>& modules, std::string_view what) {
    if (!modules.empty())
      log(LogLevel::kInfo, "{} layers are {} against {}, the first is {}", modules.size(), what,
          config.quantization.source, modules.front());
  };
  tell(survey.dense_against_config, "dense");
  tell(survey.quantised_against_config, "quantised");
}

}  // namespace

void Engine::check_weights(const EngineOptions& options) {
  if (!options.random_seed) check_quantisation(info_.config, io::TensorStore(options.model));
}

void Engine::make_ops(const EngineOptions& options) {
  auto backend = std::make_unique<ops::ObservedBackend>(make_backend(options, info_));
  backend_ = backend.get();
  ops_ = std::make_unique<ops::Ops>(std::move(backend));
  info_.device = ops_->name();
}

void Engine::load_weights(const EngineOptions& options) {
  const Clock::time_point started = Clock::now();
  if (options.random_seed) {
    model::WeightSource source(*options.random_seed, info_.config, options.load_progress);
    model_ = std::make_unique<model::Model>(info_.config, info_.dtype, source, *ops_);
  } else {
    const io::TensorStore store(options.model);
    model::WeightSource source(store, info_.config, options.load_progress);
    model_ = std::make_unique<model::Model>(info_.config, info_.dtype, source, *ops_);
    info_.num_skipped_tensors = source.num_skipped();
    if (info_.page_plan.kv_dtype == DType::kF8E4M3)
      log(LogLevel::kInfo, "scales of K and V: {} tensors of the checkpoint, 1 elsewhere",
          source.num_kv_scales());
    if (source.num_unused() > 0)
      log(LogLevel::kWarn, "{} tensors of the language model were not used", source.num_unused());
  }
  info_.weight_bytes = model_->weight_bytes();
  info_.load_seconds = std::chrono::duration<double>(Clock::now() - started).count();
}

// Scheduler, pages, inputs, workspace: what the step path uses and never grows.
void Engine::make_step_state(const EngineOptions& options) {
  storage_ = std::make_unique<CacheStorage>(
      ops_->memory(), info_.page_plan,
      cache_spec(info_.config, info_.dtype, info_.page_plan.kv_dtype, /*tensor_parallel=*/1),
      capacity_of(info_, options_.max_pinned_tokens));
  make_scheduler();
  dispatcher_ = std::make_unique<Dispatcher>(options.dispatch, info_.attention);
  batch_ = std::make_unique<InputBatch>(info_.page_plan, options.max_num_batched_tokens, options.max_num_seqs,
                                        *dispatcher_);
  mirror_ = std::make_unique<InputMirror>(ops_->memory(), info_.page_plan, options.max_num_batched_tokens,
                                          options.max_num_seqs, info_.max_model_len);
  replay_ = std::make_unique<DecodeReplay>(*ops_, options.replay);
  sampler_ = std::make_unique<Sampler>(info_.config.vocab_size);
  device_sampler_ = std::make_unique<DeviceSampler>(*model_, ops_->memory(), kLogitRows);
  draw_rows_.reserve(static_cast<size_t>(kLogitRows));
  sampled_.reserve(static_cast<size_t>(options.max_num_seqs));
  model_->reserve(step_limits(options));
}

void Engine::make_scheduler() {
  scheduler_ = std::make_unique<schedule::Scheduler>(
      info_.page_plan, capacity_of(info_, options_.max_pinned_tokens),
      schedule::SchedulerOptions{.max_num_seqs = options_.max_num_seqs,
                                 .max_num_batched_tokens = options_.max_num_batched_tokens,
                                 .max_model_len = info_.max_model_len,
                                 .max_waiting = options_.max_waiting,
                                 .reuse_decoded = options_.reuse_decoded,
                                 .min_checkpoint_tokens = options_.min_checkpoint_tokens});
}

// One short request: prefill over a grid border, then two decode steps, so that every kernel has its scratch
// before the first user. It leaves no trace: neither in the counters nor in the prefix cache.
void Engine::warm_up() {
  constexpr int64_t kAnswer = 3;
  const int64_t prompt_len = std::min<int64_t>(schedule::kGrid + 1, info_.max_model_len - kAnswer);
  if (prompt_len > 0) {
    auto live = std::make_unique<Live>();
    live->request.prompt.assign(static_cast<size_t>(prompt_len), 0);
    live->request.max_new_tokens = kAnswer;
    live->response = std::make_shared<ResponseState>();
    admit(0, std::move(live));
    while (scheduler_->has_work()) step();
    if (num_non_finite_ > 0) log(LogLevel::kWarn, "the warm-up gave logits that are not finite");
    make_scheduler();
  }
  num_generated_tokens_ = 0;
  num_kv_saturated_ = 0;
  storage_->forget_saturated();
  num_non_finite_ = 0;
  largest_step_ = {};
  dispatcher_->start_counting();
  batch_->start_counting();
  mirror_->start_counting();
  device_sampler_->start_counting();
  speed_.start_reporting();
  update_status();
}

}  // namespace longspan::engine
