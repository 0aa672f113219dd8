// ChatPrompter: from normalised messages to prompt ids, through the model's template. Special tokens come
// from the template only: text of a user that looks like one stays text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/json_fields.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace longspan::server {

struct ChatPrompt {
  std::string text;              // as rendered
  std::vector<int32_t> ids;      // of it
  bool opens_reasoning = false;  // it ends inside of an open <think>
};

// Immutable; any number of threads. Borrows tokenizer and template.
class ChatPrompter final {
 public:
  ChatPrompter(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template);

  // `request`: {messages, tools, add_generation_prompt, continue_final_message, template variables}, see
  // text::ChatTemplate::render. Throws what render and encode throw.
  ChatPrompt build(Json request) const;

 private:
  void hide_special_tokens(Json& json) const;  // in every string below
  std::vector<int32_t> encode(std::string& rendered) const;

  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  std::vector<std::string> special_tokens_;  // their texts, longest first
};

// The tokens that every chat begins with whose system message is `text`.
std::vector<int32_t> system_prefix(const ChatPrompter& prompter, const std::string& text);

}  // namespace longspan::server
