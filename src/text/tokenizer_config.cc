#include "text/tokenizer_config.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "text/added_token_field.h"
#include "text/json_field.h"
#include "text/text_file.h"
#include "text/vocabulary.h"

namespace longspan::text {
namespace {

// `eos_token` and its like: a string, or an object as added tokens are.
std::optional<std::string> named_token(const JsonField& config, const char* key) {
  const auto field = config.optional(key);
  if (!field) return std::nullopt;
  return field->value().is_object() ? field->required("content").string() : field->string();
}

std::vector<AddedToken> added_tokens(const JsonField& config) {
  std::vector<AddedToken> tokens;
  const auto decoder = config.optional("added_tokens_decoder");
  if (!decoder) return tokens;
  for (const auto& [key, value] : decoder->object().items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
      decoder->invalid(fmt::format("keys that are token ids, 0 to {}, not '{}'", kMaxTokenId, key));
    }
    tokens.push_back(read_added_token(decoder->required(key.c_str()), id));
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return tokens;
}

std::vector<NamedTemplate> chat_templates(const JsonField& config) {
  std::vector<NamedTemplate> templates;
  const auto field = config.optional("chat_template");
  if (!field) return templates;
  if (field->value().is_string()) {
    templates.push_back({"default", field->string()});
    return templates;
  }
  for (size_t i = 0; i < field->array().size(); ++i) {
    const JsonField entry = field->element(i);
    templates.push_back({entry.required("name").string(), entry.required("template").string()});
  }
  return templates;
}

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view json, std::string_view file_name) {
  const nlohmann::json document = parse_json(json, file_name);
  const JsonField config(document, file_name);
  return {
      .added_tokens = added_tokens(config),
      .bos_token = named_token(config, "bos_token"),
      .eos_token = named_token(config, "eos_token"),
      .pad_token = named_token(config, "pad_token"),
      .chat_templates = chat_templates(config),
  };
}

TokenizerConfig load_tokenizer_config(const std::filesystem::path& model_dir) {
  const auto path = model_dir / "tokenizer_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  return parse_tokenizer_config(read_text_file(path), path.string());
}

}  // namespace longspan::text
