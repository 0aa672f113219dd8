// generation_config.json: what the model's authors suggest for sampling, and the token ids that end an
// answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "io/model_config.h"

namespace longspan::io {

// A field is empty where the file does not give it.
struct GenerationConfig {
  std::vector<int32_t> eos_ids;
  std::optional<bool> do_sample;             // false: greedy
  std::optional<double> temperature;         // >= 0
  std::optional<int64_t> top_k;              // 0: off
  std::optional<double> top_p;               // (0, 1]
  std::optional<double> min_p;               // [0, 1]
  std::optional<double> repetition_penalty;  // > 0
};

// An absent file gives an empty GenerationConfig. Throws kInvalid.
GenerationConfig load_generation_config(const std::filesystem::path& directory);
GenerationConfig parse_generation_config(std::string_view text,
                                         std::string_view file = "generation_config.json");

// The ids after which an answer ends: config.json, generation_config.json and the tokenizer's own, sorted,
// each once.
std::vector<int32_t> stop_token_ids(const ModelConfig& model, const GenerationConfig& generation,
                                    const std::vector<int32_t>& tokenizer_eos_ids = {});

}  // namespace longspan::io
