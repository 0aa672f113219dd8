// Any bytes as a request body: a native request or a WireError of status 4xx, in each dialect.
#include <cstdint>
#include <string_view>

#include "server/anthropic_messages.h"
#include "server/openai_chat.h"
#include "server/openai_responses.h"

namespace {

using namespace longspan::server;

template <class Parse>
void run(const Parse& parse) {
  try {
    parse();
  } catch (const WireError& error) {
    CHECK(error.status >= 400 && error.status < 500 && !error.message.empty());
    CHECK(Json::accept(openai_error_body(error)));
  } catch (const longspan::Error& error) {
    CHECK(WireError::of(error).status < 500);
  }
}

}  // namespace

// The first byte chooses the dialect.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 16384) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const RequestDefaults kDefaults;
  run([&] {
    Json json = parse_json_object(body);
    if (data[0] % 3 == 1) json = to_chat_body(json);
    if (data[0] % 3 == 2) json = to_chat_body_from_responses(json);
    const ChatRequest chat = parse_chat_request(json, kDefaults);
    CHECK(chat.generation.num_choices >= 1 && chat.generation.max_tokens >= 0);
    for (const Json& message : chat.prompt["messages"]) CHECK(message["content"].is_string());
  });
  return 0;
}
