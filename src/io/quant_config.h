// How a checkpoint says it is quantised. A claim to cross-check: which tensors exist decides, per linear.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace longspan::io {

enum class QuantMethod : uint8_t { kNone, kAwq, kGptq, kCompressedTensors, kFp8, kAutoRound, kOther };

// One config_group of compressed-tensors.
struct QuantGroup {
  std::string name;                  // "group_0"
  std::vector<std::string> targets;  // "Linear", module names, or "re:..."
  int bits = 0;
  int group_size = -1;  // input elements that share a scale; -1 where the strategy has none
  bool symmetric = true;
  std::string type;      // "int" or "float"
  std::string strategy;  // "group", "channel", "tensor", "block"
  std::string actorder;  // "" where null or false
  bool quantised_activations = false;
};

struct QuantConfig {
  QuantMethod method = QuantMethod::kNone;
  std::string method_name;  // as written ("auto-round", "mlx", ...); "" when not quantised
  // awq: version ("gemm"); gptq: checkpoint_format ("gptq", "gptq_v2"); compressed-tensors: format
  // ("pack-quantized"); auto-round: packing_format ("auto_round:auto_gptq"); fp8: fmt ("e4m3").
  std::string format;
  int bits = 0;           // of a weight; 0 when not stated
  int group_size = 0;     // input elements that share a scale; -1: the whole row; 0 when not stated
  bool symmetric = true;  // awq: !zero_point; gptq, auto-round: sym; compressed-tensors: of the first group
  bool desc_act = false;  // gptq: groups in activation order (a real g_idx)
  bool quantised_lm_head = false;
  std::array<int, 2> block = {0, 0};  // fp8: weight_block_size [output rows, input columns]
  std::string activation_scheme;      // fp8: "dynamic" or "static"
  std::vector<QuantGroup> groups;     // compressed-tensors
  // Modules left dense, as written. awq, fp8 (modules_to_not_convert): substrings. compressed-tensors
  // (ignore): exact names or "re:...". gptq (keys "-:..." of dynamic): regexes. auto-round (extra_config with
  // bits >= 16): exact names.
  std::vector<std::string> ignore;
  std::string source;  // "config.json: quantization_config", for messages

  bool quantised() const { return method != QuantMethod::kNone; }
};

class JsonObject;

// Reads a quantization_config object. Throws kInvalid on fields of a wrong type; an unknown method is kOther,
// not an error.
QuantConfig read_quant_config(const JsonObject& object);

}  // namespace longspan::io
