// /v1/messages: Anthropic's dialect. A request is rewritten as a chat request, so that both mean the same.
#pragma once

#include "server/openai_chat.h"

namespace longspan::server {

// The chat request that asks for the same. Throws WireError naming the field in Anthropic's terms.
Json to_chat_body(const Json& messages_body);

HttpResponse anthropic_messages(const HttpRequest& request, Service& service);
HttpResponse count_message_tokens(const HttpRequest& request, Service& service);

}  // namespace longspan::server
