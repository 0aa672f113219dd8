// ChatTemplate: turns the messages of a chat request into the prompt text that a model was trained on.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja/template.h"
#include "text/tokenizer_config.h"

namespace longspan::text {

// Immutable; render() may run on many threads at once.
class ChatTemplate final {
 public:
  struct SpecialTokens {
    std::optional<std::string> bos_token;
    std::optional<std::string> eos_token;
  };

  // `sources` holds "default" and perhaps "tool_use", which is taken when a request has tools.
  // Throws Error kInvalid "chat template line N: ...".
  explicit ChatTemplate(const std::vector<NamedTemplate>& sources, SpecialTokens special_tokens = {});

  // model_dir/chat_template.jinja, else chat_template of model_dir/tokenizer_config.json.
  // Throws kNotFound when the model has neither.
  static ChatTemplate load(const std::filesystem::path& model_dir);

  // `request`: {messages, tools?, add_generation_prompt?, continue_final_message?, any further template
  // variable such as enable_thinking}. Null members and an empty tools list count as absent. Calls in
  // messages[].tool_calls may carry their arguments as JSON text ("" means {}): templates get them as
  // objects, keys in order. continue_final_message cuts the prompt after the text of the last message; an
  // empty last message is left out and the generation prompt stands in its place.
  //
  // Throws jinja::RaisedException with the template's own words when it rejects the messages, and Error
  // kInvalid for a malformed request ("messages[1].tool_calls[0]...") or a failure of the template ("chat
  // template line N: ...").
  std::string render(const nlohmann::ordered_json& request, const jinja::RenderOptions& options = {}) const;

 private:
  const jinja::Template& select(bool has_tools) const;

  std::vector<std::pair<std::string, jinja::Template>> templates_;  // by name
  SpecialTokens special_tokens_;
};

}  // namespace longspan::text
