// /v1/responses: OpenAI's second dialect, the part of it that keeps nothing between requests. A request is
// rewritten as a chat request, so that both mean the same.
#pragma once

#include "server/openai_chat.h"

namespace longspan::server {

// The chat request that asks for the same. Throws WireError naming the field in this dialect's terms.
Json to_chat_body_from_responses(const Json& responses_body);

HttpResponse openai_responses(const HttpRequest& request, Service& service);

}  // namespace longspan::server
