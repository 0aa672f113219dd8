#include "engine/plan.h"

#include <algorithm>

#include "core/units.h"
#include "engine/host_memory.h"
#include "io/tensor_store.h"
#include "model/quantized_random.h"
#include "ops/cpu/backend.h"
#include "ops/device/arch.h"
#include "ops/reference/backend.h"
#include "schedule/step_budget.h"

namespace longspan::engine {
namespace {

// Far beyond any machine: what is larger is a slip of the finger.
constexpr int64_t kMaxRanks = 1024;
constexpr int64_t kMaxBatchedTokens = 1 << 20;
constexpr int64_t kMaxWaiting = 1 << 20;
constexpr int64_t kMaxThreads = 4096;
constexpr int64_t kMaxDefaultSwapBytes = int64_t{4} << 30;

// On a card every dtype of activations is computed in, but not every one fast.
DTypeChoice choose_device_dtype(std::optional<DType> asked, DType checkpoint, std::string_view arch) {
  if (asked && *asked != DType::kF32 && *asked != DType::kBF16 && *asked != DType::kF16)
    fail(ErrorKind::kUnsupported, "dtype {}: a device computes in bfloat16, float16 or float32",
         dtype_name(*asked));
  const std::string slow = ops::device::why_slow(asked.value_or(checkpoint), arch);
  if (asked) return {*asked, slow.empty() ? "asked for" : "asked for, though " + slow};
  if (slow.empty()) return {checkpoint, "of the checkpoint"};
  return {checkpoint == DType::kBF16 ? DType::kF16 : DType::kBF16, slow};
}

// Slots kept for checkpoints of the prefix index in the split layout: as many as sequences run.
int32_t num_checkpoints(const cache::PagePlan& plan, int32_t max_num_seqs) {
  return plan.prefix_caching && plan.layout == cache::Layout::kSplit ? max_num_seqs : 0;
}

// Bytes that max_num_seqs sequences of full length take.
int64_t wanted_cache_bytes(const cache::PagePlan& plan, int64_t max_model_len, int32_t max_num_seqs) {
  const int64_t page_bytes = plan.attention_page_bytes * plan.num_layer_tensors;
  const int64_t slot_bytes = plan.state_page_bytes * plan.num_state_tensors;
  const bool states_in_pages = plan.layout == cache::Layout::kUnified;
  const int64_t pages = plan.pages_for(max_model_len) + (states_in_pages ? plan.num_state_groups() : 0);
  const int64_t num_states = max_num_seqs + num_checkpoints(plan, max_num_seqs);
  return max_num_seqs * pages * page_bytes + num_states * slot_bytes * plan.num_state_groups();
}

// Tokens of one sequence that has the whole cache to itself.
int64_t longest_sequence(const cache::PagePlan& plan, const cache::MemoryPlan& memory) {
  const int64_t num_state_pages = plan.layout == cache::Layout::kUnified ? plan.num_state_groups() : 0;
  return std::max<int64_t>(memory.num_pages - num_state_pages, 0) * plan.page_tokens;
}

// The alignment that the enabled attention paths ask for: the vendor's kernel wants its page multiple, the
// general ones 16.
int64_t path_alignment(const DispatchConfig& config, AttentionTraits traits) {
  traits.page_tokens = config.vendor_prefill_page_multiple;  // the page can still be made to fit
  return vendor_prefill_obstacle(config, traits) ? 16 : config.vendor_prefill_page_multiple;
}

// Numbers that no device could work with, whatever the model.
void check(const EngineOptions& options) {
  const auto in_range = [](const char* name, int64_t got, int64_t min, int64_t max) {
    if (got < min || got > max) fail(ErrorKind::kInvalid, "{}: got {}, need {} to {}", name, got, min, max);
  };
  in_range("tensor_parallel_size", options.tensor_parallel, 1, kMaxRanks);
  in_range("max_num_batched_tokens", options.max_num_batched_tokens, cache::kGrid, kMaxBatchedTokens);
  in_range("max_num_seqs", options.max_num_seqs, 1, options.max_num_batched_tokens);
  in_range("max_waiting", options.max_waiting, 1, kMaxWaiting);
  in_range("min_checkpoint_tokens", options.min_checkpoint_tokens, 0, INT32_MAX);
  in_range("threads", options.num_threads, 0, kMaxThreads);
  if (options.max_model_len != 0) in_range("max_model_len", options.max_model_len, 2, INT32_MAX);
  if (!(options.memory_share >= 0 && options.memory_share <= 1))
    fail(ErrorKind::kInvalid, "gpu_memory_utilization: got {}, need 0 to 1", options.memory_share);
  if (!(options.max_decode_stall_ms >= 0))
    fail(ErrorKind::kInvalid, "max_decode_stall_ms: got {}, need 0 or more", options.max_decode_stall_ms);
}

void refuse_what_cannot_run(const EngineOptions& options, const EngineInfo& info) {
  if (options.tensor_parallel != 1)
    fail(ErrorKind::kUnsupported, "tensor_parallel_size {}: this build has one rank",
         options.tensor_parallel);
  if (info.page_plan.kv_dtype != info.dtype && info.page_plan.kv_dtype != DType::kF8E4M3)
    fail(ErrorKind::kUnsupported, "kv_cache_dtype {}: K and V are kept in {} (auto) or fp8_e4m3",
         dtype_name(info.page_plan.kv_dtype), dtype_name(info.dtype));
}

// What the linear layers will take: by the tensors' headers where there are any, else by the config alone.
ops::PackedBytes weight_bytes(const EngineOptions& options, const EngineInfo& info) {
  const auto packed = [&](std::span<const ops::WeightPart> parts, ops::Packing packing) {
    if (options.device == DeviceKind::kReference) return ops::reference::packed_bytes(parts);
    if (options.device == DeviceKind::kDevice)
      return ops::device::packed_bytes(parts, info.dtype, device_options(options));
    return ops::cpu::packed_bytes(parts, packing, info.dtype);
  };
  std::optional<io::TensorStore> store;
  if (!options.random_seed && io::has_weights(options.model)) store.emplace(options.model);
  io::ModelConfig config = info.config;
  if (!store && !options.random_seed && !model::can_draw(config.quantization))
    config.quantization = {};  // a form that this build knows nothing of, explained as dense
  const model::WeightSource source =
      store ? model::WeightSource(*store, config, nullptr) : model::WeightSource(0, config, nullptr);
  ops::PackedBytes all;
  for (const model::LinearLayer& layer : model::linear_layers(info.config)) {
    const ops::PackedBytes one = packed(source.shapes(layer), layer.packing);
    all.weight += one.weight;
    all.workspace = std::max(all.workspace, one.workspace);
  }
  return all;
}

// What K and V of the longest sequence take in one layer while a prompt chunk reads them.
size_t unpacked_kv_bytes(const EngineOptions& options, const EngineInfo& info) {
  if (options.device != DeviceKind::kDevice || info.page_plan.kv_dtype != DType::kF8E4M3) return 0;
  if (vendor_prefill_obstacle(options.dispatch, info.attention)) return 0;
  const Index page_bytes =
      2 * info.page_plan.page_tokens * info.config.kv_width() * static_cast<Index>(dtype_size(info.dtype));
  return static_cast<size_t>(
      ops::device::unpacked_kv_bytes(info.page_plan.pages_for(info.max_model_len) + 1, page_bytes));
}

// What the budget leaves beside weights and workspace; INT64_MAX in an explanation without a budget.
int64_t room_for_cache(const EngineOptions& options, Purpose purpose, size_t others) {
  const auto left = [&](size_t bytes) { return static_cast<int64_t>(bytes - std::min(bytes, others)); };
  if (options.memory_bytes > 0) return left(options.memory_bytes);
  if (purpose == Purpose::kExplain) return INT64_MAX;  // of whatever machine
  const bool on_device = options.device == DeviceKind::kDevice;
  const size_t available =
      on_device ? ops::device::free_memory_bytes(options.device_index) : available_memory_bytes();
  if (options.memory_share == 0 && !on_device) return left(available) / 2;
  if (options.memory_share == 0) return left(available / 10 * 9);  // a card is ours alone
  return left(static_cast<size_t>(options.memory_share * static_cast<double>(available)));
}

// Pages and state slots of the budget, and the context length that fits.
void plan_cache(const EngineOptions& options, Purpose purpose, EngineInfo& info) {
  const int64_t native = info.config.max_position_embeddings;
  if (options.max_model_len > native)
    fail(ErrorKind::kInvalid, "max_model_len: got {}, this model was made for at most {} tokens",
         options.max_model_len, native);
  info.max_model_len = options.max_model_len > 0 ? options.max_model_len : native;
  const int64_t wanted = wanted_cache_bytes(info.page_plan, info.max_model_len, options.max_num_seqs);
  const size_t step_bytes = info.workspace_bytes;
  const auto plan_unpacked = [&] {
    info.unpacked_kv_bytes = unpacked_kv_bytes(options, info);
    info.workspace_bytes = step_bytes + info.unpacked_kv_bytes;
  };
  plan_unpacked();
  const size_t others = info.weight_bytes + info.workspace_bytes;
  const int64_t budget = options.cache_bytes > 0 ? static_cast<int64_t>(options.cache_bytes)
                                                 : std::min(wanted, room_for_cache(options, purpose, others));
  const auto plan = [&] {
    return cache::plan_memory(info.page_plan, budget, info.max_model_len, options.max_num_seqs,
                              num_checkpoints(info.page_plan, options.max_num_seqs));
  };
  info.memory = plan();
  if (info.memory.concurrency < 1 && purpose == Purpose::kRun) {
    const int64_t longest = longest_sequence(info.page_plan, info.memory);
    if (options.max_model_len > 0 || longest < cache::kGrid)
      fail(ErrorKind::kExhausted, "a cache of {} holds a sequence of {} tokens: need {} (max_model_len)",
           format_bytes(static_cast<size_t>(std::max<int64_t>(budget, 0))), longest, info.max_model_len);
    info.max_model_len = longest;
    info.memory = plan();
    plan_unpacked();
  }
  info.cache_bytes = static_cast<size_t>(info.memory.num_pages * info.memory.page_bytes +
                                         info.memory.num_state_slots * info.memory.slot_bytes);
  const bool holds_all = info.memory.concurrency >= static_cast<double>(options.max_num_seqs);
  const int64_t swap_bytes = options.swap_bytes ? static_cast<int64_t>(*options.swap_bytes)
                             : holds_all
                                 ? 0
                                 : std::min(static_cast<int64_t>(info.cache_bytes / 4), kMaxDefaultSwapBytes);
  info.swap = cache::plan_swap(info.page_plan, swap_bytes, options.max_num_seqs);
}

}  // namespace

ops::device::BackendOptions device_options(const EngineOptions& options) {
  return {.decode_segments = options.decode_segments,
          .dequant_prefill = options.dequant_prefill,
          .dequant_workspace_bytes = options.dequant_workspace_bytes,
          .num_threads = options.num_threads};
}

DTypeChoice choose_dtype(std::optional<DType> asked, DType checkpoint, DeviceKind device,
                         std::string_view arch) {
  if (device == DeviceKind::kDevice) return choose_device_dtype(asked, checkpoint, arch);
  if (asked && *asked != DType::kF32 && *asked != DType::kBF16)
    fail(ErrorKind::kUnsupported, "dtype {}: the cpu device computes in bfloat16 or float32",
         dtype_name(*asked));
  if (asked) return {*asked, "asked for"};
  if (checkpoint == DType::kF16)
    return {DType::kBF16, "the checkpoint is float16, which the cpu device does not compute in"};
  return {checkpoint, "of the checkpoint"};
}

cache::CacheSpec cache_spec(const io::ModelConfig& config, DType dtype, DType kv_dtype,
                            int64_t tensor_parallel) {
  cache::CacheSpec spec{.num_kv_heads = config.num_kv_heads,
                        .head_dim = config.head_dim,
                        .conv_kernel = config.linear_conv_kernel,
                        .conv_dim = config.is_hybrid() ? config.conv_channels() : 0,
                        .num_v_heads = config.linear_num_value_heads,
                        .v_dim = config.linear_value_head_dim,
                        .k_dim = config.linear_key_head_dim,
                        .kv_dtype = kv_dtype,
                        .model_dtype = dtype,
                        .tensor_parallel = tensor_parallel};
  for (io::LayerKind kind : config.layers)
    spec.layers.push_back(kind == io::LayerKind::kFullAttention ? cache::LayerKind::kAttention
                                                                : cache::LayerKind::kState);
  return spec;
}

model::StepLimits step_limits(const EngineOptions& options) {
  return {.max_tokens = options.max_num_batched_tokens, .max_logits = kLogitRows};
}

std::vector<ChunkShape> chunk_shapes(int64_t num_prompt, int64_t max_num_batched_tokens) {
  std::vector<ChunkShape> chunks;
  for (int64_t done = 0; done < num_prompt;) {
    const int64_t q_len = std::min(num_prompt - done, schedule::floor_grid(max_num_batched_tokens));
    done += q_len;
    chunks.push_back({q_len, done});
  }
  return chunks;
}

EngineInfo make_plan(const EngineOptions& options, Purpose purpose) {
  check(options);
  EngineInfo info;
  info.config = io::load_model_config(options.model);
  if (std::filesystem::is_directory(options.model))
    info.generation = io::load_generation_config(options.model);
  info.eos_ids = io::stop_token_ids(info.config, info.generation, options.tokenizer_eos_ids);
  // Some directories carry the ids of a larger vocabulary; no row of logits has a place for those.
  std::erase_if(info.eos_ids, [&](int32_t id) { return id < 0 || id >= info.config.vocab_size; });
  const bool on_device = options.device == DeviceKind::kDevice;
  const std::string arch = on_device ? ops::device::arch_of(options.device_index) : "";
  DTypeChoice choice = choose_dtype(options.dtype, info.config.dtype, options.device, arch);
  info.dtype = choice.dtype;
  info.dtype_reason = std::move(choice.reason);
  const ops::PackedBytes weights = weight_bytes(options, info);
  info.weight_bytes = weights.weight / static_cast<size_t>(options.tensor_parallel);
  info.dequant_bytes = weights.workspace;
  info.workspace_bytes =
      model::Model::workspace_bytes(info.config, info.dtype, step_limits(options)) + info.dequant_bytes;
  info.attention = {.dtype = info.dtype,
                    .head_dim = info.config.head_dim,
                    .num_q_heads = info.config.num_q_heads,
                    .num_kv_heads = info.config.num_kv_heads};
  cache::PagePlanOptions pages = options.pages;
  if (pages.alignment == 0) pages.alignment = path_alignment(options.dispatch, info.attention);
  const DType kv_dtype = options.kv_dtype.value_or(info.dtype);
  info.page_plan =
      cache::plan_pages(cache_spec(info.config, info.dtype, kv_dtype, options.tensor_parallel), pages);
  info.attention.page_tokens = info.page_plan.page_tokens;
  if (on_device && !vendor_prefill_obstacle(options.dispatch, info.attention)) {
    const ops::device::PrefillShape shape{.dtype = info.dtype,
                                          .kv_dtype = kv_dtype,
                                          .head_dim = info.config.head_dim,
                                          .page_tokens = info.page_plan.page_tokens,
                                          .num_q_heads = info.config.num_q_heads,
                                          .num_kv_heads = info.config.num_kv_heads};
    info.attention.own_vendor_kernel = ops::device::has_vendor_prefill(options.device_index, shape);
    info.prefill_library = ops::device::choose_prefill_library(options.device_index, shape);
    info.attention.prefill_library = info.prefill_library.obstacle.empty();
  }
  if (purpose == Purpose::kRun) refuse_what_cannot_run(options, info);
  plan_cache(options, purpose, info);
  return info;
}

namespace {

// On other devices nobody expects one.
bool looks_for_prefill_library(const EngineInfo& info) {
  return !info.prefill_library.obstacle.empty() &&
         (!info.prefill_library.name.empty() || std::string_view(ops::device::vendor_name()) == "hip");
}

}  // namespace

std::vector<std::string> describe(const EngineInfo& info, const EngineOptions& options) {
  const cache::PagePlan& plan = info.page_plan;
  std::vector<std::string> lines;
  lines.push_back(fmt::format("model       {}: {} layers ({} full attention, {} linear), vocabulary {}",
                              info.config.architecture_name, info.config.num_layers(),
                              info.config.num_layers_of(io::LayerKind::kFullAttention),
                              info.config.num_layers_of(io::LayerKind::kLinearAttention),
                              format_count(static_cast<size_t>(info.config.vocab_size))));
  if (!info.device.empty()) lines.push_back(fmt::format("device      {}", info.device));
  lines.push_back(fmt::format("dtype       {} ({})", dtype_name(info.dtype), info.dtype_reason));
  lines.push_back(fmt::format("weights     {}{}", format_bytes(info.weight_bytes),
                              options.random_seed ? " (random)" : ""));
  lines.push_back(fmt::format("page        {} tokens ({} layout, alignment {}, prefix caching {})",
                              plan.page_tokens, cache::to_string(plan.layout), plan.alignment,
                              plan.prefix_caching ? "on" : "off"));
  if (plan.kv_dtype != info.dtype)
    lines.push_back(fmt::format("K and V     {} (asked for), scales of the checkpoint or 1, read as {}",
                                dtype_name(plan.kv_dtype), dtype_name(info.dtype)));
  for (const std::string& step : plan.derivation) lines.push_back("            " + step);
  lines.push_back(fmt::format(
      "cache       {} pages{}, {}: {} tokens, {:.1f} sequences of {}", info.memory.num_pages,
      info.memory.num_state_slots > 0 ? fmt::format(" and {} state slots", info.memory.num_state_slots) : "",
      format_bytes(info.cache_bytes), format_count(static_cast<size_t>(info.memory.num_tokens)),
      info.memory.concurrency, format_count(static_cast<size_t>(info.max_model_len))));
  if (info.swap.num_pages > 0 || info.memory.concurrency < static_cast<double>(options.max_num_seqs))
    lines.push_back(info.swap.num_pages > 0
                        ? fmt::format("swap        {} pages{}, {} of host memory for preempted sequences",
                                      info.swap.num_pages,
                                      info.swap.num_state_slots > 0
                                          ? fmt::format(" and {} state slots", info.swap.num_state_slots)
                                          : "",
                                      format_bytes(static_cast<size_t>(info.swap.size_bytes)))
                        : "swap        none: a preempted sequence is computed again");
  const auto obstacle = vendor_prefill_obstacle(options.dispatch, info.attention);
  lines.push_back(fmt::format("paths       unified; page_contiguous_decode {}; vendor_prefill {}",
                              options.dispatch.page_contiguous_decode ? "on" : "off",
                              obstacle ? fmt::format("closed: {}, need {}", obstacle->got, obstacle->required)
                              : info.attention.prefill_library
                                  ? fmt::format("on, for every prompt row ({})", info.prefill_library.name)
                              : info.attention.own_vendor_kernel
                                  ? "on"
                                  : "gate open (the kernel of unified on this device)"));
  if (!obstacle && !info.attention.prefill_library && looks_for_prefill_library(info))
    lines.push_back("            no library for prompt attention: " + info.prefill_library.obstacle);
  lines.push_back(
      fmt::format("inputs      {}", options.dispatch.steady_decode_inputs
                                        ? "reserved: one sequence that decodes writes only what changes"
                                        : "general (dispatch.decode_inputs)"));
  if (options.device == DeviceKind::kDevice)
    lines.push_back(fmt::format("replay      {}", options.replay == ReplayMode::kNone
                                                      ? "off (graph.hip_graph_mode, graph.enforce_eager)"
                                                      : "steps that only decode, recorded once a shape"));
  if (options.device == DeviceKind::kDevice && info.config.quantization.quantised())
    lines.push_back(
        options.dequant_prefill
            ? fmt::format("prefill     quantised weights are unpacked once a layer and chunk, {} at a time",
                          format_bytes(info.dequant_bytes))
            : "prefill     multiplies quantised weights as they are (prefill.enable_dequant_prefill)");
  if (info.unpacked_kv_bytes > 0)
    lines.push_back(fmt::format("prefill     K and V are unpacked once a layer and chunk, {} for the longest",
                                format_bytes(info.unpacked_kv_bytes)));
  lines.push_back(fmt::format("step        up to {} tokens, {} sequences; workspace {}",
                              options.max_num_batched_tokens, options.max_num_seqs,
                              format_bytes(info.workspace_bytes)));
  return lines;
}

}  // namespace longspan::engine
