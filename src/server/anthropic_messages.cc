#include "server/anthropic_messages.h"

#include <utility>

namespace longspan::server {
namespace {

// A client's block in front of its system prompt with a number that changes at every call: it would make
// every prompt a new one for the prefix cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

// Text blocks joined; other types are refused by name.
std::string text_of_blocks(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) fail_field(where, "got {}, need a string or a list of blocks", describe(content));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    if (!content[i].is_object()) fail_field(place, "got {}, need an object", describe(content[i]));
    const JsonFields block(content[i], place + ".");
    if (block.text("type").value_or("text") != "text")
      fail_field(place + ".type", "got '{}', this model reads text only", block.text("type").value_or(""));
    const std::string part = block.text("text").value_or("");
    if (part.rfind(kBillingHeader, 0) == 0) continue;
    if (!text.empty()) text += "\n\n";
    text += part;
  }
  return text;
}

Json tool_result(const JsonFields& block, const std::string& where) {
  const Json* content = block.find("content");
  std::string text = content ? text_of_blocks(*content, where + ".content") : "";
  if (block.boolean("is_error").value_or(false)) text = "Error: " + text;
  return {{"role", "tool"}, {"tool_call_id", block.text("tool_use_id").value_or("")}, {"content", text}};
}

// One message of theirs is several of ours: results of tools come first, then what the user says.
void add_message(const Json& message, const std::string& where, Json& out) {
  const JsonFields fields(message, where + ".");
  const std::string role = fields.text("role").value_or("");
  if (role != "user" && role != "assistant" && role != "system")
    fail_field(where + ".role", "got '{}', need user or assistant", role);
  const Json* content = fields.find("content");
  if (!content) fail_field(where + ".content", "is missing: need a string or a list of blocks");
  if (content->is_string()) {
    out.push_back({{"role", role}, {"content", *content}});
    return;
  }
  if (!content->is_array())
    fail_field(where + ".content", "got {}, need a string or a list", describe(*content));
  Json said = {{"role", role}, {"content", Json::array()}};
  bool only_results = !content->empty();
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string place = fmt::format("{}.content[{}]", where, i);
    if (!(*content)[i].is_object()) fail_field(place, "got {}, need an object", describe((*content)[i]));
    const JsonFields block((*content)[i], place + ".");
    const std::string type = block.text("type").value_or("");
    only_results = only_results && type == "tool_result";
    if (type == "text") {
      said["content"].push_back({{"type", "text"}, {"text", block.text("text").value_or("")}});
    } else if (type == "thinking") {
      said["reasoning_content"] = said.value("reasoning_content", "") + block.text("thinking").value_or("");
    } else if (type == "tool_use") {
      const Json* input = block.object("input");
      said["tool_calls"].push_back(
          {{"id", block.text("id").value_or("")},
           {"type", "function"},
           {"function",
            {{"name", block.text("name").value_or("")}, {"arguments", input ? *input : Json::object()}}}});
    } else if (type == "tool_result") {
      out.push_back(tool_result(block, place));
    } else if (type != "redacted_thinking") {
      fail_field(place + ".type", "got '{}', need text, thinking, tool_use or tool_result", type);
    }
  }
  if (!only_results) out.push_back(std::move(said));
}

Json chat_tools(const Json& tools) {
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) fail_field(where, "got {}, need an object", describe(tools[i]));
    const JsonFields tool(tools[i], where + ".");
    if (const std::string type = tool.text("type").value_or("custom"); type != "custom")
      fail_field(where + ".type", "got '{}', need 'custom'", type);
    Json function = {{"name", tool.text("name").value_or("")}};
    if (const auto description = tool.text("description")) function["description"] = *description;
    if (const Json* schema = tool.object("input_schema")) function["parameters"] = *schema;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void add_tool_choice(const JsonFields& fields, Json& chat) {
  const Json* choice = fields.object("tool_choice");
  if (!choice) return;
  const JsonFields inner(*choice, "tool_choice.");
  const std::string type = inner.text("type").value_or("");
  if (type == "tool")
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", inner.text("name").value_or("")}}}};
  else if (type == "auto" || type == "none" || type == "any")
    chat["tool_choice"] = type == "any" ? "required" : type;
  else
    fail_field("tool_choice", "got type '{}', need auto, any, tool or none", type);
  if (inner.boolean("disable_parallel_tool_use").value_or(false)) chat["parallel_tool_calls"] = false;
}

const char* anthropic_stop(const Finish& finish) {
  switch (finish.reason) {
    case FinishReason::kLength:
      return "max_tokens";
    case FinishReason::kToolCalls:
      return "tool_use";
    default:
      return finish.stop_string ? "stop_sequence" : "end_turn";
  }
}

Json stop_sequence(const Finish& finish) {
  return finish.stop_string ? Json(*finish.stop_string) : Json(nullptr);
}

// input_tokens leaves out what came from the cache.
Json anthropic_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

std::string event(const char* name, const Json& data) {
  Json json = {{"type", name}};
  json.update(data);
  return fmt::format("event: {}\n{}", name, sse_data(dump(json)));
}

Json tool_use(const text::ToolCall& call, Json input) {
  return {
      {"type", "tool_use"}, {"id", text::make_call_id()}, {"name", call.name}, {"input", std::move(input)}};
}

// One answer to one request. Content blocks are opened and closed as the kind of text changes.
struct MessageFormat {
  std::string id;
  std::string model;
  int64_t prompt_tokens;
  enum class Block : uint8_t { kNone, kThinking, kText } open = Block::kNone;
  int index = 0;  // of the open or next block
  Finish finish = {};

  Json envelope(Json content, Json stop_reason, Json sequence, Json usage) const {
    return {{"id", id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model},
            {"content", std::move(content)},
            {"stop_reason", std::move(stop_reason)},
            {"stop_sequence", std::move(sequence)},
            {"usage", std::move(usage)}};
  }

  Json whole(const Answer& answer, const Usage& usage) const {
    Json content = Json::array();
    const Delta& text = answer.text;
    if (!text.reasoning.empty())
      content.push_back({{"type", "thinking"}, {"thinking", text.reasoning}, {"signature", ""}});
    if (!text.content.empty() || text.calls.empty())
      content.push_back({{"type", "text"}, {"text", text.content}});
    for (const text::ToolCall& call : text.calls)
      content.push_back(tool_use(call, Json::parse(call.arguments)));
    return envelope(std::move(content), anthropic_stop(answer.finish), stop_sequence(answer.finish),
                    anthropic_usage(usage));
  }

  std::string begin() const {
    return event("message_start", {{"message", envelope(Json::array(), nullptr, nullptr,
                                                        anthropic_usage({.prompt_tokens = prompt_tokens}))}});
  }

  std::string start_block(Json block) const {
    return event("content_block_start", {{"index", index}, {"content_block", std::move(block)}});
  }
  std::string delta(Json json) const {
    return event("content_block_delta", {{"index", index}, {"delta", std::move(json)}});
  }
  std::string close() {
    if (open == Block::kNone) return "";
    open = Block::kNone;
    return event("content_block_stop", {{"index", index++}});
  }
  std::string switch_to(Block block) {
    if (open == block) return "";
    std::string out = close();
    open = block;
    return out + start_block(block == Block::kText
                                 ? Json{{"type", "text"}, {"text", ""}}
                                 : Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
  }

  std::string update(const ChoiceUpdate& news) {
    std::string out;
    if (!news.delta.reasoning.empty()) {
      out += switch_to(Block::kThinking);
      out += delta({{"type", "thinking_delta"}, {"thinking", news.delta.reasoning}});
    }
    if (!news.delta.content.empty()) {
      out += switch_to(Block::kText);
      out += delta({{"type", "text_delta"}, {"text", news.delta.content}});
    }
    for (const text::ToolCall& call : news.delta.calls) {
      out += close();
      out += start_block(tool_use(call, Json::object()));
      out += delta({{"type", "input_json_delta"}, {"partial_json", call.arguments}});
      out += event("content_block_stop", {{"index", index++}});
    }
    if (news.finish) finish = *news.finish;
    return out;
  }

  std::string end(const Usage& usage) {
    std::string out = index == 0 && open == Block::kNone ? switch_to(Block::kText) : "";  // an empty answer
    out += close();
    out +=
        event("message_delta",
              {{"delta", {{"stop_reason", anthropic_stop(finish)}, {"stop_sequence", stop_sequence(finish)}}},
               {"usage", anthropic_usage(usage)}});
    return out + event("message_stop", Json::object());
  }
};

}  // namespace

Json to_chat_body(const Json& body) {
  const JsonFields fields(body);
  Json chat = Json::object();
  chat["messages"] = Json::array();
  if (const Json* system = fields.find("system"))
    chat["messages"].push_back({{"role", "system"}, {"content", text_of_blocks(*system, "system")}});
  const Json* messages = fields.array("messages");
  if (!messages || messages->empty())
    fail_field("messages", "is missing or empty: need at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    if (!(*messages)[i].is_object()) fail_field(where, "got {}, need an object", describe((*messages)[i]));
    add_message((*messages)[i], where, chat["messages"]);
  }
  for (const char* same :
       {"model", "max_tokens", "temperature", "top_p", "top_k", "stream", "sse_ping_interval"})
    if (const Json* value = fields.find(same)) chat[same] = *value;
  if (const Json* stop = fields.array("stop_sequences")) chat["stop"] = *stop;
  if (const Json* tools = fields.array("tools")) chat["tools"] = chat_tools(*tools);
  add_tool_choice(fields, chat);
  // In this dialect a model thinks when it is asked to.
  const Json* thinking = fields.object("thinking");
  const std::string mode =
      thinking ? JsonFields(*thinking, "thinking.").text("type").value_or("") : "disabled";
  if (mode != "enabled" && mode != "adaptive" && mode != "disabled")
    fail_field("thinking.type", "got '{}', need enabled, adaptive or disabled", mode);
  chat["enable_thinking"] = mode != "disabled";
  if (const Json* config = fields.object("output_config"))
    if (const Json* format = JsonFields(*config, "output_config.").object("format")) {
      chat["response_format"] = *format;  // here the schema lies beside its type
      chat["response_format"]["json_schema"] = *format;
    }
  if (const Json* kwargs = fields.find("chat_template_kwargs")) chat["chat_template_kwargs"] = *kwargs;
  return chat;
}

HttpResponse anthropic_messages(const HttpRequest& request, Service& service) {
  const Json body = parse_json_object(request.body);
  if (!JsonFields(body).find("max_tokens")) fail_field("max_tokens", "is missing: need a number of tokens");
  ChatRequest chat = parse_chat_request(to_chat_body(body), service.defaults);
  const std::string model = service.resolve_model(chat.model);
  build_prompt_ids(chat, service);
  auto format = std::make_shared<MessageFormat>(
      MessageFormat{.id = "msg_" + request.id,
                    .model = model,
                    .prompt_tokens = static_cast<int64_t>(chat.generation.prompts.front().size())});
  const auto running = start_generation(service, request, chat.generation, "messages");
  if (!chat.stream.stream) {
    const std::vector<Answer> answers = collect(*running, 1, request.peer);
    return {.body = dump(format->whole(answers.front(), running->usage()))};
  }
  return stream_response(
      running, request.peer, chat.stream.keepalive_seconds,
      {.begin = [format] { return format->begin(); },
       .update = [format](const ChoiceUpdate& news, const Usage&) { return format->update(news); },
       .end = [format](const Usage& usage) { return format->end(usage); },
       .error =
           [](const WireError& error) { return "event: error\n" + sse_data(anthropic_error_body(error)); },
       .keep_alive = event("ping", Json::object())});  // comments do not reset these clients' watchdogs
}

HttpResponse count_message_tokens(const HttpRequest& request, Service& service) {
  ChatRequest chat = parse_chat_request(to_chat_body(parse_json_object(request.body)), service.defaults);
  service.resolve_model(chat.model);
  build_prompt_ids(chat, service);
  return {.body = dump({{"input_tokens", chat.generation.prompts.front().size()}})};
}

}  // namespace longspan::server
