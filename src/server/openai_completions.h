// /v1/completions: OpenAI's text dialect. A prompt goes to the model as it is, special tokens included.
#pragma once

#include "server/openai_fields.h"
#include "server/service.h"

namespace longspan::server {

struct CompletionRequest {
  std::optional<std::string> model;
  std::vector<std::string> texts;  // of the prompts, for echo
  GenerationRequest generation;    // its prompts are the ids
  StreamOptions stream;
  bool echo = false;
  bool only_prompt = false;  // echo with max_tokens 0: nothing is answered
};

// Throws WireError naming the field.
CompletionRequest parse_completion_request(const Json& body, const Service& service);

HttpResponse completions(const HttpRequest& request, Service& service);

}  // namespace longspan::server
