#include "cli/settings.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "core/log.h"
#include "core/units.h"
#include "ops/device/backend.h"

namespace longspan::cli {
namespace {

// Flags of the command line, named as other servers name them, and the settings they stand for.
struct Flag {
  const char* name;
  std::string_view key;
  FlagKind kind = FlagKind::kModel;
};
using enum FlagKind;
constexpr Flag kFlags[] = {
    {"--model", "model.model_path"},
    {"--dtype", "model.dtype"},
    {"--quantization", "model.quantization"},
    {"--random-weights", "model.random_weights"},
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
    {"--swap-memory", "cache.swap_memory", kRequests},
    {"--reuse-decoded", "cache.reuse_decoded", kRequests},
    {"--min-checkpoint-tokens", "cache.min_checkpoint_tokens", kRequests},
    {"--pinned-prompt", "cache.pinned_prompt", kServer},
    {"--kv-cache-dtype", "cache.kv_cache_dtype"},
    {"--enable-prefix-caching,!--no-enable-prefix-caching", "cache.enable_prefix_caching"},
    {"--max-num-batched-tokens", "graph.max_num_batched_tokens"},
    {"--enable-chunked-prefill,!--no-enable-chunked-prefill", "graph.chunked_prefill"},
    {"--enforce-eager", "graph.enforce_eager"},
    {"--device", "engine.device"},
    {"--threads", "engine.threads"},
    {"--memory", "engine.memory"},
    {"--max-num-seqs", "engine.max_num_seqs", kRequests},
    {"--max-waiting", "engine.max_waiting", kRequests},
    {"--max-decode-stall-ms", "engine.max_decode_stall_ms", kRequests},
    {"--host", "server.host", kServer},
    {"--port", "server.port", kServer},
    {"--api-key", "server.api_key", kServer},
    {"--allow-no-key", "server.allow_no_key", kServer},
    {"--served-model-name", "server.served_model_name", kServer},
    {"--any-model-name", "server.any_model_name", kServer},
    {"--sse-keepalive-seconds", "server.sse_keepalive_seconds", kServer},
    {"--request-timeout-seconds", "server.request_timeout_seconds", kServer},
    {"--shutdown-timeout-seconds", "server.shutdown_timeout_seconds", kServer},
    {"--metrics-compat", "server.metrics_compat", kServer},
    {"--profile-dir", "server.profile_dir", kServer},
    {"--enable-log-requests,!--disable-log-requests", "server.log_requests", kServer},
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

template <class T>
T in_range(const io::Config& config, std::string_view key, T value, T min, T max) {
  if (!(value >= min && value <= max))
    fail(ErrorKind::kInvalid, "{}: got {}, need {} to {}", where(config, key), value, min, max);
  return value;
}

// An integer that must fit in 32 bits; the engine checks its range.
int32_t int32_of(const io::Config& config, std::string_view key) {
  return static_cast<int32_t>(in_range<int64_t>(config, key, config.integer(key),
                                                std::numeric_limits<int32_t>::min(),
                                                std::numeric_limits<int32_t>::max()));
}

// "64GiB"; 0 where nothing is said.
size_t size_of(const io::Config& config, std::string_view key) {
  const std::string& text = config.string(key);
  if (text.empty()) return 0;
  try {
    return parse_bytes(text);
  } catch (const Error& error) {
    fail(error.kind, "{}: {}", where(config, key), error.what());
  }
}

engine::DispatchConfig dispatch(const io::Config& config) {
  using Words = std::array<std::string_view, 3>;
  expect_word(config, "attention.backend", Words{"auto", "vendor_paged_attention", "unified"});
  expect_word(config, "attention.attention_backend", Words{"auto", "hip_gfx906", "unified"});
  expect_word(config, "attention.hip_attention_fallback",
              std::array<std::string_view, 2>{"unified", "triton"});
  expect_word(config, "dispatch.decode_path", std::array<std::string_view, 2>{"page_contiguous", "unified"});
  expect_word(config, "dispatch.decode_inputs", std::array<std::string_view, 2>{"steady", "general"});
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
      .vendor_prefill_page_multiple =
          in_range<int64_t>(config, "dispatch.vendor_prefill_page_multiple",
                            config.integer("dispatch.vendor_prefill_page_multiple"), 1, 1 << 20),
      .vendor_prefill_dtype = dtype_from_name(config.string("dispatch.vendor_prefill_dtype")),
      .page_contiguous_decode = config.string("dispatch.decode_path") == "page_contiguous",
      .steady_decode_inputs = config.string("dispatch.decode_inputs") == "steady"};
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

// One workspace serves all projections: the largest of its bounds is the bound.
size_t dequant_workspace_bytes(const io::Config& config) {
  int64_t mib = 0;
  for (const char* key : {"prefill.dequant_workspace_qkv_mib", "prefill.dequant_workspace_gate_up_mib",
                          "prefill.dequant_workspace_down_mib"})
    mib = std::max(mib, in_range<int64_t>(config, key, config.integer(key), 0, 1 << 20));
  return static_cast<size_t>(mib) << 20;
}

engine::ReplayMode replay_mode(const io::Config& config) {
  expect_word(config, "graph.hip_graph_mode",
              std::array<std::string_view, 3>{"auto", "none", "FULL_DECODE_ONLY"});
  const bool off = config.boolean("graph.enforce_eager") || config.string("graph.hip_graph_mode") == "none";
  return off ? engine::ReplayMode::kNone : engine::ReplayMode::kFullDecodeOnly;
}

// What only a device has: refused where the answer would depend on it, else named, so that nobody waits for
// an effect.
void check_device_settings(const io::Config& config, bool on_device) {
  for (const char* key : {"prefill.enable_dequant_prefill", "prefill.dequant_workspace_qkv_mib",
                          "prefill.dequant_workspace_gate_up_mib", "prefill.dequant_workspace_down_mib",
                          "graph.enforce_eager", "graph.hip_graph_mode"})
    if (!config.is_default(key) && !on_device)
      log(LogLevel::kInfo, "{}: has no effect on the cpu device", where(config, key));
  if (!config.boolean("graph.chunked_prefill"))
    refuse(config, "graph.chunked_prefill",
           "prompts always run in chunks; raise graph.max_num_batched_tokens instead");
  if (config.integer("attention.hip_attention_softmax_segments") != 0 && !on_device)
    refuse(config, "attention.hip_attention_softmax_segments",
           "the cpu device chooses the segments by context length");
}

uint64_t seed_of(const io::Config& config) {
  const std::string& text = config.string("model.random_weights");
  uint64_t seed = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (status != std::errc() || rest != text.data() + text.size())
    fail(ErrorKind::kInvalid, "{}: got '{}', need a number", where(config, "model.random_weights"), text);
  return seed;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string directory_name(std::filesystem::path path) {
  path = std::filesystem::weakly_canonical(path);
  return std::filesystem::is_directory(path) ? path.filename().string()
                                             : path.parent_path().filename().string();
}

// Those between the commas.
std::vector<std::string> names_of(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (end > at) names.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

}  // namespace

void SettingFlags::add_to(CLI::App& command, FlagKind kind) {
  command.add_option("--config", config_file_, "config.toml; flags and LONGSPAN_* variables win over it");
  for (const Flag& flag : kFlags) {
    if (flag.kind > kind) continue;
    const io::ConfigKey& key = key_of(flag.key);
    const std::string name = std::string(flag.name).substr(0, std::string(flag.name).find(','));
    const auto remember = [this, setting = std::string(flag.key)](const std::string& value,
                                                                  const std::string& as) {
      given_.push_back({setting, value, as});
    };
    const std::string doc =
        key.default_value.empty() ? std::string(key.doc) : fmt::format("{} [{}]", key.doc, key.default_value);
    if (key.kind == io::ConfigKind::kBool) {
      const std::string negation = std::string(flag.name).substr(std::string(flag.name).find('!') + 1);
      const auto flip = [=](int64_t count) {
        count > 0 ? remember("true", name) : remember("false", negation);
      };
      command.add_flag_function(flag.name, flip, doc);
    } else if (flag.key == "server.served_model_name") {  // as elsewhere: several words after one flag
      const auto join = [=](const std::vector<std::string>& names) {
        remember(fmt::format("{}", fmt::join(names, ",")), name);
      };
      command.add_option_function<std::vector<std::string>>(flag.name, join, doc);
    } else {
      const auto set = [=](const std::string& value) { remember(value, name); };
      command.add_option_function<std::string>(flag.name, set, doc);
    }
  }
}

io::Config SettingFlags::settings() const {
  io::Config config;
  if (!config_file_.empty()) config.load_file(config_file_);
  // The short name of LONGSPAN_SERVER_API_KEY, which units and containers use.
  if (const char* key = std::getenv("LONGSPAN_API_KEY"))
    config.set("server.api_key", key, "LONGSPAN_API_KEY");
  config.load_environment(environ);
  for (const Given& given : given_) config.set(given.key, given.value, given.flag);
  return config;
}

std::optional<int> device_index(const std::string& name, const std::string& from) {
  const std::string vendor = ops::device::vendor_name();
  if (name == "cpu") return std::nullopt;
  if (vendor == "none") fail(ErrorKind::kInvalid, "{}: got {}, this build has no device but cpu", from, name);
  if (name == vendor) return 0;
  const bool has_index = name.size() == vendor.size() + 2 && name.starts_with(vendor + ":") &&
                         name.back() >= '0' && name.back() <= '9';
  if (!has_index)
    fail(ErrorKind::kInvalid, "{}: got {}, this build has cpu, {} and {}:N", from, name, vendor, vendor);
  return name.back() - '0';
}

namespace {

// Also "reference", the oracle.
void set_device(const io::Config& config, engine::EngineOptions& options) {
  const std::string& name = config.string("engine.device");
  if (name == "reference") {
    options.device = engine::DeviceKind::kReference;
  } else if (const std::optional<int> index = device_index(name, where(config, "engine.device"))) {
    options.device = engine::DeviceKind::kDevice;
    options.device_index = *index;
  }
}

}  // namespace

engine::EngineOptions engine_options(const io::Config& config, engine::Purpose purpose) {
  if (config.string("model.model_path").empty())
    fail(ErrorKind::kInvalid, "no model: need --model, or model.model_path in --config");
  engine::EngineOptions options{
      .model = config.string("model.model_path"),
      .num_threads = int32_of(config, "engine.threads"),
      .max_model_len = config.integer("model.max_model_len"),
      .max_num_seqs = int32_of(config, "engine.max_num_seqs"),
      .max_num_batched_tokens = config.integer("graph.max_num_batched_tokens"),
      .max_decode_stall_ms = config.number("engine.max_decode_stall_ms"),
      .max_waiting = config.integer("engine.max_waiting"),
      .tensor_parallel = config.integer("model.tensor_parallel_size"),
      .dequant_prefill = config.boolean("prefill.enable_dequant_prefill"),
      .dequant_workspace_bytes = dequant_workspace_bytes(config),
      .decode_segments = static_cast<int32_t>(in_range<int64_t>(
          config, "attention.hip_attention_softmax_segments",
          config.integer("attention.hip_attention_softmax_segments"), 0, ops::device::kMaxDecodeSegments)),
      .kv_dtype = kv_dtype(config),
      .memory_share = config.number("model.gpu_memory_utilization"),
      .memory_bytes = size_of(config, "engine.memory"),
      .cache_bytes = size_of(config, "cache.memory"),
      .reuse_decoded = config.boolean("cache.reuse_decoded"),
      .min_checkpoint_tokens = config.integer("cache.min_checkpoint_tokens"),
      .pages = {.alignment = config.integer("cache.alignment_tokens"),
                .block_size = config.integer("cache.block_size"),
                .layout = cache::layout_from_name(config.string("cache.layout")),
                .prefix_caching = config.boolean("cache.enable_prefix_caching"),
                .state_chunk = config.integer("cache.state_chunk"),
                .min_page_tokens = config.integer("cache.min_page_tokens"),
                .target_page_tokens = config.integer("cache.target_page_tokens")},
      .dispatch = dispatch(config),
      .replay = replay_mode(config)};
  set_device(config, options);
  if (config.string("model.dtype") != "auto") options.dtype = dtype_from_name(config.string("model.dtype"));
  if (!config.string("cache.swap_memory").empty()) options.swap_bytes = size_of(config, "cache.swap_memory");
  if (!config.string("model.random_weights").empty()) options.random_seed = seed_of(config);
  if (purpose == engine::Purpose::kRun)
    check_device_settings(config, options.device == engine::DeviceKind::kDevice);
  return options;
}

server::ServerOptions server_options(const io::Config& config) {
  constexpr double kDay = 86400;
  expect_word(config, "server.metrics_compat", std::array<std::string_view, 2>{"none", "vllm"});
  const auto seconds = [&](std::string_view key, double min) {
    return in_range(config, key, config.number(key), min, kDay);
  };
  server::ServerOptions options{.host = config.string("server.host"),
                                .port = static_cast<int>(in_range<int64_t>(
                                    config, "server.port", config.integer("server.port"), 0, 65535)),
                                .api_key = config.string("server.api_key"),
                                .model_names = names_of(config.string("server.served_model_name")),
                                .strict_model_name = !config.boolean("server.any_model_name"),
                                .keepalive_seconds = seconds("server.sse_keepalive_seconds", 0),
                                .shutdown_timeout_seconds = seconds("server.shutdown_timeout_seconds", 0),
                                .request_timeout_seconds = seconds("server.request_timeout_seconds", 0),
                                .stall_seconds = seconds("engine.rpc_timeout_seconds", 1),
                                .log_requests = config.boolean("server.log_requests"),
                                .vllm_metrics = config.string("server.metrics_compat") == "vllm",
                                .version = LONGSPAN_VERSION};
  for (io::Config::Setting& setting : config.settings())
    options.settings.push_back(
        {std::move(setting.name), std::move(setting.value), std::move(setting.source)});
  if (options.model_names.empty()) options.model_names = {directory_name(config.string("model.model_path"))};
  if (!is_loopback(options.host) && options.api_key.empty() && !config.boolean("server.allow_no_key"))
    fail(ErrorKind::kInvalid,
         "{}: {} can be reached from other machines: need an api_key (--api-key) or --allow-no-key",
         where(config, "server.host"), options.host);
  return options;
}

void check_quantisation(const io::Config& config, const io::QuantConfig& model) {
  std::string method = config.string("model.quantization");
  if (method == "auto" || !config.string("model.random_weights").empty()) return;
  if (const size_t kernel = method.find("_marlin"); kernel != std::string::npos) method.resize(kernel);
  const std::string got = model.quantised() ? model.method_name : "none";
  if (method != got)
    fail(ErrorKind::kInvalid, "{} expects {} weights: the model says {}", where(config, "model.quantization"),
         method, got);
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
