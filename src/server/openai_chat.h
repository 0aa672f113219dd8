// /v1/chat/completions: OpenAI's chat dialect.
#pragma once

#include <string>

#include "server/openai_fields.h"
#include "server/service.h"

namespace longspan::server {

// A request, checked; nothing of it has reached the engine yet.
struct ChatRequest {
  std::optional<std::string> model;
  Json prompt;  // what ChatPrompter::build takes
  GenerationRequest generation;
  StreamOptions stream;
  bool include_reasoning = true;
  bool names_call = false;  // tool_choice names the one call that the answer is
};

// Throws WireError naming the field.
ChatRequest parse_chat_request(const Json& body, const RequestDefaults& defaults);

// Renders and tokenizes: sets the ids of the generation, whether it begins inside of reasoning, and the masks
// of its form. Returns the prompt's text. Takes chat.prompt.
std::string build_prompt_ids(ChatRequest& chat, Service& service);

HttpResponse chat_completions(const HttpRequest& request, Service& service);
// /apply-template: the prompt text of a chat request.
HttpResponse apply_template(const HttpRequest& request, Service& service);

}  // namespace longspan::server
