#include "io/model_config.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "io/json.h"

namespace longspan::io {
namespace {

// Bounds far above every published model, yet small enough that no product of two of them overflows or could
// be turned into an absurd allocation by a hostile file.
constexpr Bounds<int64_t> kWidth = {1, 1 << 20};
constexpr Bounds<int64_t> kVocab = {1, 1 << 24};
constexpr Bounds<int64_t> kLayers = {1, 1024};
constexpr Bounds<int64_t> kHeads = {1, 4096};
constexpr Bounds<int64_t> kHeadDim = {1, 1024};
constexpr Bounds<int64_t> kConvKernel = {2, 8};
constexpr Bounds<int64_t> kPositions = {1, int64_t{1} << 31};
constexpr Bounds<double> kEps = {1e-12, 1e-1};
constexpr Bounds<double> kTheta = {1.0, 1e12};
constexpr Bounds<double> kRotaryFactor = {1e-3, 1.0};

constexpr double kHybridRotaryFactor = 0.25;
constexpr int64_t kFullAttentionInterval = 4;

struct KnownName {
  std::string_view name;
  Architecture architecture;
};

constexpr KnownName kArchitectures[] = {
    {"Qwen3_5ForConditionalGeneration", Architecture::kQwen3_5},
    {"Qwen3_5ForCausalLM", Architecture::kQwen3_5},
    {"Qwen3ForCausalLM", Architecture::kQwen3},
    {"Qwen2ForCausalLM", Architecture::kQwen2},
};

// For files without `architectures`.
constexpr KnownName kModelTypes[] = {
    {"qwen3_5", Architecture::kQwen3_5},
    {"qwen3_5_text", Architecture::kQwen3_5},
    {"qwen3", Architecture::kQwen3},
    {"qwen2", Architecture::kQwen2},
};

// The two places of a field: text_config (the file itself in flat exports), and the top level.
struct Source {
  JsonObject top;
  JsonObject text;
};

template <size_t N>
std::string list_of(const KnownName (&names)[N]) {
  std::string list;
  for (const KnownName& known : names) list += fmt::format("{}{}", list.empty() ? "" : ", ", known.name);
  return list;
}

template <size_t N>
Architecture find_name(const KnownName (&names)[N], const std::string& name, const JsonObject& object,
                       std::string_view key) {
  for (const KnownName& known : names)
    if (known.name == name) return known.architecture;
  const bool is_moe = name.find("Moe") != std::string::npos || name.find("_moe") != std::string::npos;
  fail(ErrorKind::kUnsupported, "{}: {}: got {}{}, need one of {}", object.where(), key, name,
       is_moe ? " (a mixture of experts)" : "", list_of(names));
}

void read_architecture(const Source& source, ModelConfig& config) {
  const auto names = source.top.find_strings("architectures");
  if (names && !names->empty()) {
    config.architecture_name = names->front();
    config.architecture = find_name(kArchitectures, names->front(), source.top, "architectures");
    return;
  }
  const std::string model_type = source.top.string("model_type");
  config.architecture_name = model_type;
  config.architecture = find_name(kModelTypes, model_type, source.top, "model_type");
}

// Features that would change the arithmetic, and that this engine does not have. Ignoring one would give
// wrong answers.
void refuse_unsupported(const Source& source, const ModelConfig& config) {
  const JsonObject& text = source.text;
  const auto refuse = [&](std::string_view key, std::string_view got, std::string_view need) {
    fail(ErrorKind::kUnsupported, "{}: {}: got {}, need {}", text.where(), key, got, need);
  };
  for (std::string_view key : {"num_experts", "num_local_experts", "n_routed_experts"})
    if (const auto experts = text.find_integer(key, {0, INT32_MAX}); experts.value_or(0) > 0)
      refuse(key, std::to_string(*experts), "none: mixture of experts is not supported");
  if (const auto act = text.find_string("hidden_act"); act && *act != "silu" && *act != "swish")
    refuse("hidden_act", *act, "silu");
  if (text.find_bool("use_sliding_window").value_or(false) && text.find("sliding_window"))
    refuse("use_sliding_window", "true", "false: sliding window attention is not supported");
  if (config.architecture != Architecture::kQwen2 && text.find_bool("attention_bias").value_or(false))
    refuse("attention_bias", "true", "false");
  // null is an error in the family's own code as well: only absence means the default.
  if (text.contains("output_gate_type")) {
    const auto gate = text.find_string("output_gate_type");
    if (!gate || (*gate != "silu" && *gate != "swish"))
      refuse("output_gate_type", gate ? *gate : "null", "silu or swish (or no such field)");
  }
}

void read_sizes(const JsonObject& text, ModelConfig& config) {
  config.vocab_size = text.integer("vocab_size", kVocab);
  config.hidden_size = text.integer("hidden_size", kWidth);
  config.intermediate_size = text.integer("intermediate_size", kWidth);
  config.max_position_embeddings = text.integer("max_position_embeddings", kPositions);
  config.rms_norm_eps = static_cast<float>(text.find_number("rms_norm_eps", kEps).value_or(1e-6));
}

void read_attention(const JsonObject& text, ModelConfig& config) {
  config.num_q_heads = text.integer("num_attention_heads", kHeads);
  config.num_kv_heads = text.find_integer("num_key_value_heads", kHeads).value_or(config.num_q_heads);
  if (config.num_q_heads % config.num_kv_heads != 0)
    fail(ErrorKind::kInvalid, "{}: num_attention_heads: got {}, need a multiple of num_key_value_heads {}",
         text.where(), config.num_q_heads, config.num_kv_heads);

  const auto head_dim = text.find_integer("head_dim", kHeadDim);
  if (!head_dim && config.architecture != Architecture::kQwen2)
    text.refuse("head_dim", "an integer from 1 to 1024");
  if (!head_dim && config.hidden_size % config.num_q_heads != 0)
    fail(ErrorKind::kInvalid,
         "{}: hidden_size: got {}, need a multiple of num_attention_heads {} where head_dim is absent",
         text.where(), config.hidden_size, config.num_q_heads);
  config.head_dim = head_dim.value_or(config.hidden_size / config.num_q_heads);

  const bool is_hybrid = config.architecture == Architecture::kQwen3_5;
  config.norm = is_hybrid ? NormKind::kZeroCentered : NormKind::kPlain;
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  config.qk_norm = config.architecture != Architecture::kQwen2;
  config.attn_output_gate = is_hybrid;  // whatever the field of that name says: the family always gates
}

void read_linear_attention(const JsonObject& text, ModelConfig& config) {
  if (config.architecture != Architecture::kQwen3_5) return;
  config.linear_num_key_heads = text.integer("linear_num_key_heads", kHeads);
  config.linear_num_value_heads = text.integer("linear_num_value_heads", kHeads);
  config.linear_key_head_dim = text.integer("linear_key_head_dim", kHeadDim);
  config.linear_value_head_dim = text.integer("linear_value_head_dim", kHeadDim);
  config.linear_conv_kernel = text.integer("linear_conv_kernel_dim", kConvKernel);
  if (config.linear_num_value_heads % config.linear_num_key_heads != 0)
    fail(ErrorKind::kInvalid,
         "{}: linear_num_value_heads: got {}, need a multiple of linear_num_key_heads {}", text.where(),
         config.linear_num_value_heads, config.linear_num_key_heads);
}

LayerKind layer_kind_from_name(const std::string& name, const JsonObject& text, Architecture architecture) {
  if (name == "full_attention") return LayerKind::kFullAttention;
  if (name == "linear_attention" && architecture == Architecture::kQwen3_5)
    return LayerKind::kLinearAttention;
  fail(ErrorKind::kUnsupported, "{}: layer_types: got {}, need full_attention{}", text.where(), name,
       architecture == Architecture::kQwen3_5 ? " or linear_attention" : "");
}

// The list wins; without one every full_attention_interval-th layer is full attention (3, 7, 11, ...).
void read_layers(const JsonObject& text, ModelConfig& config) {
  const int64_t num_layers = text.integer("num_hidden_layers", kLayers);
  const auto names = text.find_strings("layer_types");
  if (names && std::cmp_not_equal(names->size(), num_layers))
    fail(ErrorKind::kInvalid, "{}: layer_types: got {} entries, need num_hidden_layers {}", text.where(),
         names->size(), num_layers);
  const int64_t interval =
      config.architecture == Architecture::kQwen3_5
          ? text.find_integer("full_attention_interval", kLayers).value_or(kFullAttentionInterval)
          : 1;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (names)
      config.layers.push_back(
          layer_kind_from_name((*names)[static_cast<size_t>(layer)], text, config.architecture));
    else
      config.layers.push_back((layer + 1) % interval == 0 ? LayerKind::kFullAttention
                                                          : LayerKind::kLinearAttention);
  }
}

// Re-exports keep the RoPE fields in rope_parameters, flat, or in rope_scaling; where they differ, the first
// wins.
std::vector<JsonObject> rope_places(const JsonObject& text) {
  std::vector<JsonObject> places;
  if (auto parameters = text.find_object("rope_parameters")) places.push_back(*std::move(parameters));
  places.push_back(text);
  if (auto scaling = text.find_object("rope_scaling")) places.push_back(*std::move(scaling));
  return places;
}

void check_rope_type(const std::vector<JsonObject>& places, const JsonObject& text) {
  for (const JsonObject& place : places) {
    auto type = place.find_string("rope_type");
    const bool is_nested = &place.json() != &text.json();
    if (!type && is_nested) type = place.find_string("type");  // the old name
    if (!type) continue;
    // "mrope" is how older multimodal exports spell default.
    if (*type != "default" && *type != "mrope")
      fail(ErrorKind::kUnsupported, "{}: rope_type: got {}, need default", place.where(), *type);
    return;
  }
}

std::array<int64_t, 3> read_mrope_section(const JsonObject& place, const Json& value) {
  if (!value.is_array() || value.size() != 3) place.refuse("mrope_section", "three integers");
  std::array<int64_t, 3> section{};
  for (size_t axis = 0; axis < 3; ++axis) {
    if (!value[axis].is_number_unsigned() || value[axis].get<uint64_t>() > uint64_t{kHeadDim.max})
      place.refuse("mrope_section", "three integers from 0 to 1024");
    section[axis] = value[axis].get<int64_t>();
  }
  return section;
}

void read_rope(const JsonObject& text, ModelConfig& config) {
  const std::vector<JsonObject> places = rope_places(text);
  check_rope_type(places, text);
  std::optional<double> theta, factor;
  const Json* section = nullptr;
  for (const JsonObject& place : places) {
    if (!theta) theta = place.find_number("rope_theta", kTheta);
    if (!factor) factor = place.find_number("partial_rotary_factor", kRotaryFactor);
    if (section) continue;
    section = place.find("mrope_section");
    if (section) config.mrope_section = read_mrope_section(place, *section);
  }
  if (!theta) text.refuse("rope_theta", "a number in rope_parameters, here, or in rope_scaling");
  config.rope_theta = *theta;
  const double share =
      factor.value_or(config.architecture == Architecture::kQwen3_5 ? kHybridRotaryFactor : 1.0);
  config.rotary_dim = static_cast<int64_t>(share * static_cast<double>(config.head_dim));
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0)
    fail(ErrorKind::kInvalid,
         "{}: partial_rotary_factor: got {} of head_dim {} = {} rotated elements, need an even number >= 2",
         text.where(), share, config.head_dim, config.rotary_dim);
}

DType read_dtype(const Source& source) {
  for (const JsonObject* place : {&source.text, &source.top}) {
    for (std::string_view key : {"dtype", "torch_dtype"}) {
      const auto name = place->find_string(key);
      if (!name) continue;
      if (*name == "bfloat16") return DType::kBF16;
      if (*name == "float16") return DType::kF16;
      if (*name == "float32") return DType::kF32;
      place->refuse(key, "bfloat16, float16 or float32");
    }
  }
  return DType::kBF16;
}

void read_quantization(const Source& source, ModelConfig& config) {
  // The second name is an older one of compressed-tensors, the third MLX's.
  for (std::string_view key : {"quantization_config", "compression_config", "quantization"}) {
    for (const JsonObject* place : {&source.top, &source.text}) {
      if (config.quantization.quantised()) return;
      if (const auto object = place->find_object(key)) config.quantization = read_quant_config(*object);
    }
  }
}

}  // namespace

std::string_view to_string(Architecture architecture) {
  switch (architecture) {
    case Architecture::kQwen3_5:
      return "qwen3_5";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kQwen2:
      return "qwen2";
  }
  return "?";
}

std::string_view to_string(LayerKind kind) {
  return kind == LayerKind::kFullAttention ? "full_attention" : "linear_attention";
}

int64_t ModelConfig::num_layers_of(LayerKind kind) const {
  return std::count(layers.begin(), layers.end(), kind);
}

ModelConfig parse_model_config(std::string_view content, std::string_view file) {
  const Json json = parse_json(content, file);
  const JsonObject top(json, std::string(file));
  const Source source{top, top.find_object("text_config").value_or(top)};
  const JsonObject& text = source.text;
  ModelConfig config;
  read_architecture(source, config);
  refuse_unsupported(source, config);
  read_sizes(text, config);
  read_attention(text, config);
  read_linear_attention(text, config);
  read_layers(text, config);
  read_rope(text, config);
  config.dtype = read_dtype(source);
  // Exports that move fields between the levels lose one of the two: either saying so is enough.
  config.tie_word_embeddings = source.text.find_bool("tie_word_embeddings").value_or(false) ||
                               source.top.find_bool("tie_word_embeddings").value_or(false);
  config.eos_ids = source.text.find_token_ids("eos_token_id");
  if (config.eos_ids.empty()) config.eos_ids = source.top.find_token_ids("eos_token_id");
  read_quantization(source, config);
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& directory_or_file) {
  std::error_code status;
  const bool is_directory = std::filesystem::is_directory(directory_or_file, status);
  const std::filesystem::path path = is_directory ? directory_or_file / "config.json" : directory_or_file;
  ModelConfig config = parse_model_config(read_text_file(path), path.filename().string());
  for (std::string_view side_file :
       {"quantize_config.json", "quantization_config.json", "quant_config.json"}) {
    const std::filesystem::path side_path = path.parent_path() / side_file;
    if (config.quantization.quantised() || !std::filesystem::exists(side_path, status)) continue;
    const Json json = parse_json(read_text_file(side_path), side_file);
    config.quantization = read_quant_config(JsonObject(json, std::string(side_file)));
  }
  return config;
}

}  // namespace longspan::io
