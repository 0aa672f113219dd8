// The messages of real clients, brought to the form that chat templates know: one system message in front,
// text contents, roles system, user, assistant and tool. Pure functions over JSON.
#pragma once

#include "server/json_fields.h"

namespace longspan::server {

// `messages` and `tools` in the form of OpenAI's chat API. All of these throw a WireError naming the place.

// - developer counts as system, function as tool; every system text goes into one message in front, because
//   templates refuse them elsewhere.
// - content: a string, null, or a list of parts of type text, input_text, output_text or refusal, joined.
//   Anything else (images) is refused by name.
// - an assistant's `reasoning` or `reasoning_content` is kept as reasoning_content; tool_calls are checked.
// - members that no template reads are dropped.
Json normalize_messages(const Json& messages);

// Null or [] gives null. Each tool needs a name; the envelope {type: function, function: {...}} is added
// where a client left it out.
Json normalize_tools(const Json* tools);

// The last message is an assistant's without calls: the answer goes on from its text.
bool ends_with_assistant(const Json& normalized_messages);

}  // namespace longspan::server
