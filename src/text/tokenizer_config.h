// tokenizer_config.json: the named tokens, further added tokens, and the chat template a model may carry
// there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"

namespace longspan::text {

// One of `chat_template`. A plain string is the template named "default".
struct NamedTemplate {
  std::string name;
  std::string source;  // Jinja
};

struct TokenizerConfig {
  std::vector<AddedToken> added_tokens;  // `added_tokens_decoder`, by id
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::vector<NamedTemplate> chat_templates;
};

// Throws kInvalid naming `file_name` and the field.
TokenizerConfig parse_tokenizer_config(std::string_view json, std::string_view file_name);

// Reads model_dir/tokenizer_config.json; a model without that file has an empty configuration.
TokenizerConfig load_tokenizer_config(const std::filesystem::path& model_dir);

}  // namespace longspan::text
