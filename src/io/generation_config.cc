#include "io/generation_config.h"

#include <algorithm>
#include <system_error>

#include "io/json.h"

namespace longspan::io {
namespace {

constexpr std::string_view kFile = "generation_config.json";

}  // namespace

GenerationConfig parse_generation_config(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file);
  const JsonObject object(json, std::string(file));
  GenerationConfig config;
  config.eos_ids = object.find_token_ids("eos_token_id");
  config.do_sample = object.find_bool("do_sample");
  config.temperature = object.find_number("temperature", {0.0, 1e3});
  config.top_k = object.find_integer("top_k", {0, INT32_MAX});
  config.top_p = object.find_number("top_p", {1e-9, 1.0});
  config.min_p = object.find_number("min_p", {0.0, 1.0});
  config.repetition_penalty = object.find_number("repetition_penalty", {1e-3, 1e3});
  return config;
}

GenerationConfig load_generation_config(const std::filesystem::path& directory) {
  std::error_code status;
  const std::filesystem::path path = directory / kFile;
  if (!std::filesystem::exists(path, status)) return {};
  return parse_generation_config(read_text_file(path), kFile);
}

std::vector<int32_t> stop_token_ids(const ModelConfig& model, const GenerationConfig& generation,
                                    const std::vector<int32_t>& tokenizer_eos_ids) {
  std::vector<int32_t> ids = model.eos_ids;
  ids.insert(ids.end(), generation.eos_ids.begin(), generation.eos_ids.end());
  ids.insert(ids.end(), tokenizer_eos_ids.begin(), tokenizer_eos_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace longspan::io
