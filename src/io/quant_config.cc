#include "io/quant_config.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/error.h"
#include "io/json.h"

namespace longspan::io {
namespace {

constexpr Bounds<int64_t> kBits = {1, 32};
constexpr Bounds<int64_t> kGroupSize = {-1, 1 << 20};
constexpr Bounds<int64_t> kBlock = {1, 1 << 20};
constexpr int kDenseBits = 16;  // auto-round: a module with as many bits is not quantised

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

QuantMethod method_from_name(const std::string& name) {
  static constexpr std::pair<std::string_view, QuantMethod> kMethods[] = {
      {"awq", QuantMethod::kAwq},
      {"gptq", QuantMethod::kGptq},
      {"compressed-tensors", QuantMethod::kCompressedTensors},
      {"fp8", QuantMethod::kFp8},
      {"auto-round", QuantMethod::kAutoRound},
  };
  for (const auto& [known, method] : kMethods)
    if (known == name) return method;
  return QuantMethod::kOther;
}

// Side files of older tools carry no quant_method: AWQ's have a version or w_bit, GPTQ's have desc_act or
// sym.
std::string guess_method(const JsonObject& object) {
  if (object.contains("desc_act") || object.contains("sym")) return "gptq";
  if (object.contains("zero_point") || object.contains("w_bit")) return "awq";
  if (object.contains("config_groups")) return "compressed-tensors";
  if (object.contains("bits") && object.contains("group_size")) return "mlx";
  object.refuse("quant_method", "a string such as awq, gptq, compressed-tensors, fp8 or auto-round");
}

// The first of two names that is present; tools do not agree.
std::optional<int64_t> find_either(const JsonObject& object, std::string_view name, std::string_view other,
                                   Bounds<int64_t> bounds) {
  const auto value = object.find_integer(name, bounds);
  return value ? value : object.find_integer(other, bounds);
}

void read_common(const JsonObject& object, QuantConfig& config) {
  config.bits = static_cast<int>(find_either(object, "bits", "w_bit", kBits).value_or(0));
  config.group_size =
      static_cast<int>(find_either(object, "group_size", "q_group_size", kGroupSize).value_or(0));
  config.ignore = object.find_strings("modules_to_not_convert").value_or(std::vector<std::string>{});
}

void read_awq(const JsonObject& object, QuantConfig& config) {
  config.format = lower(object.find_string("version").value_or("gemm"));
  config.symmetric = !object.find_bool("zero_point").value_or(true);
}

void read_gptq(const JsonObject& object, QuantConfig& config) {
  config.format = object.find_string("checkpoint_format").value_or("gptq");
  config.symmetric = object.find_bool("sym").value_or(true);
  config.desc_act = object.find_bool("desc_act").value_or(false);
  config.quantised_lm_head = object.find_bool("lm_head").value_or(false);
  if (const auto dynamic = object.find_object("dynamic"))
    for (const auto& [pattern, overrides] : dynamic->json().items())
      if (pattern.starts_with("-:")) config.ignore.push_back(pattern.substr(2));
}

void read_auto_round(const JsonObject& object, QuantConfig& config) {
  config.format = object.find_string("packing_format").value_or("");
  config.symmetric = object.find_bool("sym").value_or(true);
  if (const auto extra = object.find_object("extra_config")) {
    for (const auto& [module, value] : extra->json().items()) {
      const JsonObject overrides(value, fmt::format("{}: {}", extra->where(), module));
      if (overrides.find_integer("bits", kBits).value_or(0) >= kDenseBits) config.ignore.push_back(module);
    }
  }
}

QuantGroup read_group(const std::string& name, const JsonObject& object) {
  QuantGroup group{.name = name};
  group.targets = object.find_strings("targets").value_or(std::vector<std::string>{});
  group.quantised_activations = object.find("input_activations") != nullptr;
  const auto weights = object.find_object("weights");
  if (!weights) return group;
  group.bits = static_cast<int>(weights->find_integer("num_bits", kBits).value_or(0));
  group.group_size = static_cast<int>(weights->find_integer("group_size", kGroupSize).value_or(-1));
  group.symmetric = weights->find_bool("symmetric").value_or(true);
  group.type = weights->find_string("type").value_or("int");
  group.strategy = weights->find_string("strategy").value_or("");
  const Json* actorder = weights->find("actorder");  // false, null, "group", "weight", "static"
  if (actorder && actorder->is_string()) group.actorder = actorder->get<std::string>();
  return group;
}

void read_compressed_tensors(const JsonObject& object, QuantConfig& config) {
  config.format = object.find_string("format").value_or("");
  config.ignore = object.find_strings("ignore").value_or(std::vector<std::string>{});
  if (const auto groups = object.find_object("config_groups"))
    for (const auto& [name, value] : groups->json().items())
      config.groups.push_back(
          read_group(name, JsonObject(value, fmt::format("{}: {}", groups->where(), name))));
  if (config.groups.empty()) return;
  const QuantGroup& first = config.groups.front();
  config.bits = first.bits;
  config.group_size = first.group_size;
  config.symmetric = first.symmetric;
}

void read_fp8(const JsonObject& object, QuantConfig& config) {
  config.format = object.find_string("fmt").value_or("e4m3");
  config.bits = 8;
  config.activation_scheme = object.find_string("activation_scheme").value_or("dynamic");
  const Json* block = object.find("weight_block_size");
  if (!block) return;
  if (!block->is_array() || block->size() != 2) object.refuse("weight_block_size", "[rows, columns]");
  for (size_t axis = 0; axis < 2; ++axis) {
    const Json& size = (*block)[axis];
    if (!size.is_number_unsigned() || size.get<uint64_t>() < 1 || size.get<uint64_t>() > uint64_t{kBlock.max})
      object.refuse("weight_block_size", fmt::format("two integers from {} to {}", kBlock.min, kBlock.max));
    config.block[axis] = size.get<int>();
  }
}

}  // namespace

QuantConfig read_quant_config(const JsonObject& object) {
  QuantConfig config;
  config.source = object.where();
  config.method_name = lower(object.find_string("quant_method").value_or(""));
  if (config.method_name.empty()) config.method_name = guess_method(object);
  config.method = method_from_name(config.method_name);
  read_common(object, config);
  switch (config.method) {
    case QuantMethod::kAwq:
      read_awq(object, config);
      break;
    case QuantMethod::kGptq:
      read_gptq(object, config);
      break;
    case QuantMethod::kCompressedTensors:
      read_compressed_tensors(object, config);
      break;
    case QuantMethod::kFp8:
      read_fp8(object, config);
      break;
    case QuantMethod::kAutoRound:
      read_auto_round(object, config);
      break;
    case QuantMethod::kNone:
    case QuantMethod::kOther:
      break;
  }
  return config;
}

}  // namespace longspan::io
