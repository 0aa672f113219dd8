#include "cli/settings.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "core/log.h"
#include "core/units.h"

namespace longspan::cli {
namespace {

// Flags of the command line, named as other servers name them, and the settings they stand for.
struct Flag {
  const char* name;
  std::string_view key;
};
constexpr Flag kFlags[] = {
    {"--model", "model.model_path"},
    {"--dtype", "model.dtype"},
    {"--quantization", "model.quantization"},
    {"--tensor-parallel-size", "model.tensor_parallel_size"},
    {"--max-model-len", "model.max_model_len"},
    {"--gpu-memory-utilization", "model.gpu_memory_utilization"},
    {"--layout", "cache.layout"},
    {"--alignment", "cache.alignment_tokens"},
    {"--block-size", "cache.block_size"},
    {"--state-chunk", "cache.state_chunk"},
    {"--min-page-tokens", "cache.min_page_tokens"},
    {"--target-page-tokens", "cache.target_page_tokens"},
    {"--cache-memory", "cache.memory"},
    {"--kv-cache-dtype", "cache.kv_cache_dtype"},
    {"--enable-prefix-caching,!--no-enable-prefix-caching", "cache.enable_prefix_caching"},
    {"--max-num-batched-tokens", "graph.max_num_batched_tokens"},
    {"--enable-chunked-prefill", "graph.chunked_prefill"},
    {"--enforce-eager", "graph.enforce_eager"},
    {"--device", "engine.device"},
    {"--threads", "engine.threads"},
    {"--max-num-seqs", "engine.max_num_seqs"},
};

const io::ConfigKey& key_of(std::string_view name) {
  for (const io::ConfigKey& key : io::config_keys())
    if (key.name == name) return key;
  CHECK_MSG(false, "no setting {}", name);
  __builtin_unreachable();
}

// "config.toml: cache.layout" for messages.
std::string where(const io::Config& config, std::string_view key) {
  return fmt::format("{}: {}", config.source(key), key);
}

[[noreturn]] void refuse(const io::Config& config, std::string_view key, std::string_view reason) {
  fail(ErrorKind::kUnsupported, "{}: {}", where(config, key), reason);
}

// One of a few words, or kInvalid.
template <size_t N>
void expect_word(const io::Config& config, std::string_view key,
                 const std::array<std::string_view, N>& words) {
  for (std::string_view word : words)
    if (config.string(key) == word) return;
  fail(ErrorKind::kInvalid, "{}: got '{}', need {}", where(config, key), config.string(key),
       fmt::join(words, ", "));
}

// An integer that must fit in 32 bits; the engine checks its range.
int32_t int32_of(const io::Config& config, std::string_view key) {
  const int64_t value = config.integer(key);
  if (value != static_cast<int32_t>(value))
    fail(ErrorKind::kInvalid, "{}: got {}, need a 32-bit number", where(config, key), value);
  return static_cast<int32_t>(value);
}

engine::DispatchConfig dispatch(const io::Config& config) {
  using Words = std::array<std::string_view, 3>;
  expect_word(config, "attention.backend", Words{"auto", "vendor_paged_attention", "unified"});
  expect_word(config, "attention.attention_backend", Words{"auto", "hip_gfx906", "unified"});
  expect_word(config, "attention.hip_attention_fallback",
              std::array<std::string_view, 2>{"unified", "triton"});
  expect_word(config, "dispatch.decode_path", std::array<std::string_view, 2>{"page_contiguous", "unified"});
  if (config.string("attention.attention_backend") == "hip_gfx906")
    log(LogLevel::kInfo, "{}: hip_gfx906 is a device's; the cpu device uses its own kernels",
        where(config, "attention.attention_backend"));
  engine::DispatchConfig dispatch{
      .enable_vendor_prefill = config.boolean("dispatch.vendor_prefill") &&
                               config.string("attention.backend") != "unified" &&
                               config.string("attention.attention_backend") != "unified",
      .vendor_prefill_min_q = config.integer("dispatch.vendor_prefill_min_q"),
      .vendor_prefill_max_q = config.integer("dispatch.vendor_prefill_max_q"),
      .vendor_prefill_require_single_seq = config.boolean("dispatch.vendor_prefill_require_single_seq"),
      .page_contiguous_decode = config.string("dispatch.decode_path") == "page_contiguous"};
  if (const int64_t head_dim = config.integer("attention.head_size"))
    dispatch.vendor_prefill_head_dim = head_dim;
  if (const int64_t ratio = config.integer("attention.gqa_ratio")) dispatch.vendor_prefill_gqa_ratio = ratio;
  return dispatch;
}

std::optional<DType> kv_dtype(const io::Config& config) {
  for (const char* key : {"cache.kv_cache_dtype", "attention.hip_attention_kv_dtype"})
    if (config.string(key) != "auto") return dtype_from_name(config.string(key));
  return std::nullopt;
}

// What only a device has: refused where the answer would depend on it, else named, so that nobody waits for
// an effect.
void check_device_settings(const io::Config& config) {
  for (const char* key :
       {"model.gpu_memory_utilization", "prefill.enable_dequant_prefill", "prefill.dequant_workspace_qkv_mib",
        "prefill.dequant_workspace_gate_up_mib", "prefill.dequant_workspace_down_mib", "graph.enforce_eager",
        "graph.hip_graph_mode"})
    if (!config.is_default(key))
      log(LogLevel::kInfo, "{}: has no effect on the cpu device", where(config, key));
  if (!config.boolean("graph.chunked_prefill"))
    refuse(config, "graph.chunked_prefill",
           "prompts always run in chunks; raise graph.max_num_batched_tokens instead");
  const std::string& method = config.string("model.quantization");
  if (method != "auto" && method != "none")
    refuse(config, "model.quantization",
           fmt::format("{} weights: this build reads bfloat16, float16 and float32", method));
  if (config.integer("attention.hip_attention_softmax_segments") != 0)
    refuse(config, "attention.hip_attention_softmax_segments",
           "the cpu device chooses the segments by context length");
}

}  // namespace

void SettingFlags::add_to(CLI::App& command, const std::vector<std::string>& sections) {
  command.add_option("--config", config_file_, "config.toml; flags and LONGSPAN_* variables win over it");
  for (const Flag& flag : kFlags) {
    const io::ConfigKey& key = key_of(flag.key);
    const std::string section(flag.key.substr(0, flag.key.find('.')));
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) continue;
    const std::string name = std::string(flag.name).substr(0, std::string(flag.name).find(','));
    const auto remember = [this, name, setting = std::string(flag.key)](const std::string& value) {
      given_.push_back({setting, value, name});
    };
    if (key.kind == io::ConfigKind::kBool)
      command.add_flag_function(
          flag.name, [remember](int64_t count) { remember(count > 0 ? "true" : "false"); },
          std::string(key.doc));
    else
      command.add_option_function<std::string>(flag.name, remember, std::string(key.doc));
  }
}

io::Config SettingFlags::settings() const {
  io::Config config;
  if (!config_file_.empty()) config.load_file(config_file_);
  config.load_environment(environ);
  for (const Given& given : given_) config.set(given.key, given.value, given.flag);
  return config;
}

engine::EngineOptions engine_options(const io::Config& config, engine::Purpose purpose) {
  engine::EngineOptions options{.model = config.string("model.model_path"),
                                .num_threads = int32_of(config, "engine.threads"),
                                .max_model_len = config.integer("model.max_model_len"),
                                .max_num_seqs = int32_of(config, "engine.max_num_seqs"),
                                .max_num_batched_tokens = config.integer("graph.max_num_batched_tokens"),
                                .max_decode_stall_ms = config.number("engine.max_decode_stall_ms"),
                                .max_waiting = config.integer("engine.max_waiting"),
                                .tensor_parallel = config.integer("model.tensor_parallel_size"),
                                .kv_dtype = kv_dtype(config),
                                .pages = {.alignment = config.integer("cache.alignment_tokens"),
                                          .block_size = config.integer("cache.block_size"),
                                          .layout = cache::layout_from_name(config.string("cache.layout")),
                                          .prefix_caching = config.boolean("cache.enable_prefix_caching"),
                                          .state_chunk = config.integer("cache.state_chunk"),
                                          .min_page_tokens = config.integer("cache.min_page_tokens"),
                                          .target_page_tokens = config.integer("cache.target_page_tokens")},
                                .dispatch = dispatch(config)};
  const std::string& device = config.string("engine.device");
  expect_word(config, "engine.device", std::array<std::string_view, 2>{"cpu", "reference"});
  if (device == "reference") options.device = engine::DeviceKind::kReference;
  if (config.string("model.dtype") != "auto") options.dtype = dtype_from_name(config.string("model.dtype"));
  if (!config.string("cache.memory").empty())
    options.cache_bytes = parse_bytes(config.string("cache.memory"));
  if (purpose == engine::Purpose::kRun) check_device_settings(config);
  return options;
}

void check_expectations(const io::Config& config, const io::ModelConfig& model) {
  const auto expect = [&](std::string_view key, int64_t got) {
    const int64_t need = config.integer(key);
    if (need != 0 && need != got)
      fail(ErrorKind::kInvalid, "{} expects {}: the model has {}", where(config, key), need, got);
  };
  const int64_t ratio = model.num_q_heads / model.num_kv_heads;
  expect("attention.query_heads", model.num_q_heads);
  expect("attention.kv_heads", model.num_kv_heads);
  expect("attention.head_size", model.head_dim);
  expect("attention.gqa_ratio", ratio);
  expect("attention.hip_attention_head_size", model.head_dim);
  expect("attention.hip_attention_gqa", ratio);
  if (!config.boolean("attention.causal")) refuse(config, "attention.causal", "every model here is causal");
  for (const char* key : {"attention.sliding_window", "attention.alibi", "attention.softcap"})
    if (config.boolean(key)) refuse(config, key, "no model here has it");
}

}  // namespace longspan::cli
