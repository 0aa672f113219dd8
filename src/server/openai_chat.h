// /v1/chat/completions: OpenAI's chat dialect.
#pragma once

#include <string>

#include "server/openai_fields.h"

namespace longspan::server {

// A request, checked; nothing of it has reached the engine yet.
struct ChatRequest {
  std::optional<std::string> model;
  Json prompt;  // what ChatPrompter::build takes
  GenerationRequest generation;
  StreamOptions stream;
  bool include_reasoning = true;
};

// Throws WireError naming the field.
ChatRequest parse_chat_request(const Json& body, const Service& service);

HttpResponse chat_completions(const HttpRequest& request, Service& service);
// /apply-template: the prompt text of a chat request.
HttpResponse apply_template(const HttpRequest& request, Service& service);

}  // namespace longspan::server
