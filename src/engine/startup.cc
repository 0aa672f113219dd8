// What happens before the engine thread starts: load, plan the memory, warm up, and say so.
#include <algorithm>

#include "core/log.h"
#include "core/units.h"
#include "engine/engine.h"
#include "engine/host_memory.h"
#include "ops/cpu/backend.h"
#include "ops/reference/backend.h"

namespace longspan::engine {
namespace {

std::unique_ptr<ops::Backend> make_backend(const EngineOptions& options) {
  if (options.device == DeviceKind::kReference) return ops::reference::make_backend();
  return ops::cpu::make_backend({.num_threads = options.num_threads});
}

// The dtype of the products, and why.
std::pair<DType, std::string> choose_dtype(const EngineOptions& options, const io::ModelConfig& config) {
  if (options.dtype) {
    if (*options.dtype != DType::kF32 && *options.dtype != DType::kBF16)
      fail(ErrorKind::kUnsupported, "dtype {}: the cpu device computes in bfloat16 or float32",
           dtype_name(*options.dtype));
    return {*options.dtype, "asked for"};
  }
  if (config.dtype == DType::kF16)
    return {DType::kBF16, "the checkpoint is float16, which the cpu device does not compute in"};
  return {config.dtype, "of the checkpoint"};
}

cache::CacheSpec cache_spec(const io::ModelConfig& config, DType dtype) {
  cache::CacheSpec spec{.num_kv_heads = config.num_kv_heads,
                        .head_dim = config.head_dim,
                        .conv_kernel = config.linear_conv_kernel,
                        .conv_dim = config.is_hybrid() ? config.conv_channels() : 0,
                        .num_v_heads = config.linear_num_value_heads,
                        .v_dim = config.linear_value_head_dim,
                        .k_dim = config.linear_key_head_dim,
                        .kv_dtype = dtype,
                        .model_dtype = dtype};
  for (io::LayerKind kind : config.layers)
    spec.layers.push_back(kind == io::LayerKind::kFullAttention ? cache::LayerKind::kAttention
                                                                : cache::LayerKind::kState);
  return spec;
}

// Bytes that max_num_seqs sequences of full length take.
int64_t wanted_cache_bytes(const cache::PagePlan& plan, int64_t max_model_len, int32_t max_num_seqs) {
  const int64_t page_bytes = plan.attention_page_bytes * plan.num_layer_tensors;
  const int64_t slot_bytes = plan.state_page_bytes * plan.num_state_tensors;
  const bool states_in_pages = plan.layout == cache::Layout::kUnified;
  const int64_t pages = plan.pages_for(max_model_len) + (states_in_pages ? plan.num_state_groups() : 0);
  return max_num_seqs * (pages * page_bytes + slot_bytes * plan.num_state_groups());
}

model::StepLimits step_limits(const EngineOptions& options) {
  return {.max_tokens = options.max_num_batched_tokens, .max_logits = kLogitRows};
}

// The alignment that the enabled attention paths ask for: the vendor's kernel wants its page multiple, the
// general ones 16.
int64_t path_alignment(const DispatchConfig& config, AttentionTraits traits) {
  traits.page_tokens = config.vendor_prefill_page_multiple;  // the page can still be made to fit
  return vendor_prefill_obstacle(config, traits) ? 16 : config.vendor_prefill_page_multiple;
}

}  // namespace

// Everything that config.json and the options determine, before a weight is read.
void Engine::decide(const EngineOptions& options) {
  info_.config = io::load_model_config(options.model);
  if (std::filesystem::is_directory(options.model))
    info_.generation = io::load_generation_config(options.model);
  info_.eos_ids = io::stop_token_ids(info_.config, info_.generation, options.tokenizer_eos_ids);
  std::tie(info_.dtype, info_.dtype_reason) = choose_dtype(options, info_.config);
  ops_ = std::make_unique<ops::Ops>(make_backend(options));
  info_.device = ops_->name();
  info_.weight_bytes = model::estimate_weight_bytes(info_.config, info_.dtype);
  info_.workspace_bytes = model::Model::workspace_bytes(info_.config, info_.dtype, step_limits(options));
  const cache::CacheSpec spec = cache_spec(info_.config, info_.dtype);
  info_.attention = {.dtype = info_.dtype,
                     .head_dim = info_.config.head_dim,
                     .num_q_heads = info_.config.num_q_heads,
                     .num_kv_heads = info_.config.num_kv_heads};
  cache::PagePlanOptions pages = options.pages;
  if (pages.alignment == 0) pages.alignment = path_alignment(options.dispatch, info_.attention);
  info_.page_plan = cache::plan_pages(spec, pages);
  info_.attention.page_tokens = info_.page_plan.page_tokens;
  plan_memory(options);
}

void Engine::plan_memory(const EngineOptions& options) {
  const int64_t native = info_.config.max_position_embeddings;
  if (options.max_model_len > native)
    fail(ErrorKind::kInvalid, "max_model_len: got {}, this model was made for at most {} tokens",
         options.max_model_len, native);
  info_.max_model_len = options.max_model_len > 0 ? options.max_model_len : native;

  const int64_t wanted = wanted_cache_bytes(info_.page_plan, info_.max_model_len, options.max_num_seqs);
  const size_t available = available_memory_bytes();
  const size_t others = info_.weight_bytes + info_.workspace_bytes;
  const auto half = static_cast<int64_t>((available - std::min(available, others)) / 2);
  const int64_t budget =
      options.cache_bytes > 0 ? static_cast<int64_t>(options.cache_bytes) : std::min(wanted, half);
  info_.memory = cache::plan_memory(info_.page_plan, budget, info_.max_model_len, options.max_num_seqs);
  if (info_.memory.concurrency < 1) {
    if (options.max_model_len > 0 || info_.memory.num_tokens < schedule::kGrid)
      fail(ErrorKind::kExhausted, "a cache of {} holds {} tokens: need {} for one sequence of max_model_len",
           format_bytes(static_cast<size_t>(budget)), info_.memory.num_tokens, info_.max_model_len);
    info_.max_model_len = info_.memory.num_tokens;
    info_.memory = cache::plan_memory(info_.page_plan, budget, info_.max_model_len, options.max_num_seqs);
  }
  info_.cache_bytes = static_cast<size_t>(info_.memory.num_pages * info_.memory.page_bytes +
                                          info_.memory.num_state_slots * info_.memory.slot_bytes);
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
    if (source.num_unused() > 0)
      log(LogLevel::kWarn, "{} tensors of the language model were not used", source.num_unused());
  }
  info_.weight_bytes = model_->weight_bytes();
  info_.load_seconds = std::chrono::duration<double>(Clock::now() - started).count();
}

// Scheduler, pages, inputs, workspace: what the step path uses and never grows.
void Engine::make_step_state(const EngineOptions& options) {
  const cache::CacheCapacity capacity{.num_pages = info_.memory.num_pages,
                                      .num_state_slots = info_.memory.num_state_slots};
  storage_ = std::make_unique<CacheStorage>(info_.page_plan, cache_spec(info_.config, info_.dtype), capacity);
  scheduler_ = std::make_unique<schedule::Scheduler>(
      info_.page_plan, capacity,
      schedule::SchedulerOptions{.max_num_seqs = options.max_num_seqs,
                                 .max_num_batched_tokens = options.max_num_batched_tokens,
                                 .max_model_len = info_.max_model_len,
                                 .max_waiting = options.max_waiting,
                                 .max_decode_stall_ms = options.max_decode_stall_ms});
  dispatcher_ = std::make_unique<Dispatcher>(options.dispatch, info_.attention);
  batch_ = std::make_unique<InputBatch>(info_.page_plan, options.max_num_batched_tokens, options.max_num_seqs,
                                        *dispatcher_);
  sampler_ = std::make_unique<Sampler>(info_.config.vocab_size);
  sampled_.reserve(static_cast<size_t>(options.max_num_seqs));
  model_->reserve(step_limits(options));
}

// One short request: prefill over a grid border, then two decode steps, so that every kernel has its scratch
// before the first user.
void Engine::warm_up() {
  const int64_t prompt_len = std::min<int64_t>(schedule::kGrid + 1, info_.max_model_len - 3);
  if (prompt_len < 1) return;
  auto live = std::make_unique<Live>();
  live->request.prompt.assign(static_cast<size_t>(prompt_len), 0);
  live->request.max_new_tokens = 3;
  live->request.cache_salt = "\x1fwarm-up";
  live->response = std::make_shared<ResponseState>(3);
  admit(0, std::move(live));
  while (scheduler_->has_work()) step();
  num_generated_tokens_ = 0;
  num_non_finite_ = 0;
  prefill_tokens_per_ms_ = 0;
  dispatcher_->start_counting();
}

std::vector<std::string> describe(const EngineInfo& info, const EngineOptions& options) {
  const cache::PagePlan& plan = info.page_plan;
  std::vector<std::string> lines;
  lines.push_back(fmt::format("model       {}: {} layers ({} full attention, {} linear), vocabulary {}",
                              info.config.architecture_name, info.config.num_layers(),
                              info.config.num_layers_of(io::LayerKind::kFullAttention),
                              info.config.num_layers_of(io::LayerKind::kLinearAttention),
                              format_count(static_cast<size_t>(info.config.vocab_size))));
  lines.push_back(fmt::format("device      {}", info.device));
  lines.push_back(fmt::format("dtype       {} ({})", dtype_name(info.dtype), info.dtype_reason));
  lines.push_back(fmt::format("weights     {}{}", format_bytes(info.weight_bytes),
                              options.random_seed ? " (random)" : "", info.num_skipped_tensors,
                              format_seconds(info.load_seconds)));
  lines.push_back(fmt::format("page        {} tokens ({} layout, alignment {}, prefix caching {})",
                              plan.page_tokens, cache::to_string(plan.layout), plan.alignment,
                              plan.prefix_caching ? "on" : "off"));
  for (const std::string& step : plan.derivation) lines.push_back("            " + step);
  lines.push_back(fmt::format(
      "cache       {} pages{}, {}: {} tokens, {:.1f} sequences of {}", info.memory.num_pages,
      info.memory.num_state_slots > 0 ? fmt::format(" and {} state slots", info.memory.num_state_slots) : "",
      format_bytes(info.cache_bytes), format_count(static_cast<size_t>(info.memory.num_tokens)),
      info.memory.concurrency, format_count(static_cast<size_t>(info.max_model_len))));
  const auto obstacle = vendor_prefill_obstacle(options.dispatch, info.attention);
  lines.push_back(
      fmt::format("paths       unified; page_contiguous_decode {}; vendor_prefill {}",
                  options.dispatch.page_contiguous_decode ? "on" : "off",
                  obstacle ? fmt::format("closed: {}, need {}", obstacle->got, obstacle->required) : "on"));
  lines.push_back(fmt::format("step        up to {} tokens, {} sequences; workspace {}",
                              options.max_num_batched_tokens, options.max_num_seqs,
                              format_bytes(info.workspace_bytes)));
  return lines;
}

}  // namespace longspan::engine
