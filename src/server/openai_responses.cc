#include "server/openai_responses.h"

#include <memory>
#include <utility>

namespace longspan::server {
namespace {

// Consecutive calls belong to one assistant message, as does the text in front of them.
Json& assistant_for_call(Json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  return messages.back();
}

std::string output_text(const Json& output, const std::string& where) {
  if (output.is_string()) return output.get<std::string>();
  if (!output.is_array()) fail_field(where, "got {}, need a string or a list of parts", describe(output));
  std::string text;
  for (const Json& part : output)
    if (part.is_object()) text += part.value("text", "");
  return text;
}

void add_item(const Json& item, const std::string& where, Json& messages) {
  if (!item.is_object()) fail_field(where, "got {}, need an object", describe(item));
  const JsonFields fields(item, where + ".");
  const std::string type = fields.text("type").value_or("message");
  if (type == "message") {
    const Json* content = fields.find("content");
    messages.push_back(
        {{"role", fields.text("role").value_or("user")}, {"content", content ? *content : Json("")}});
  } else if (type == "function_call") {
    Json& message = assistant_for_call(messages);
    message["tool_calls"].push_back({{"id", fields.text("call_id").value_or("")},
                                     {"type", "function"},
                                     {"function",
                                      {{"name", fields.text("name").value_or("")},
                                       {"arguments", fields.text("arguments").value_or("")}}}});
  } else if (type == "function_call_output") {
    const Json* output = fields.find("output");
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", fields.text("call_id").value_or("")},
                        {"content", output ? output_text(*output, where + ".output") : ""}});
  } else if (type != "reasoning") {  // T39: earlier reasoning, whatever is in it, asks for nothing
    fail_field(where + ".type", "got '{}', need message, function_call, function_call_output or reasoning",
               type);
  }
}

Json function_tools(const Json& tools) {
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) fail_field(where, "got {}, need an object", describe(tools[i]));
    const std::string type = JsonFields(tools[i], where + ".").text("type").value_or("");
    if (type != "function") fail_field(where + ".type", "got '{}', need 'function'", type);
    Json function = tools[i];
    function.erase("type");
    function.erase("strict");
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void refuse_state(const JsonFields& fields) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"})
    fields.refuse(name, "it keeps nothing between requests");
  if (fields.boolean("background").value_or(false))
    fields.refuse("background", "it keeps nothing between requests");
}

Json responses_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// One response: items are opened and closed as the kind of text changes.
struct ResponsesFormat {
  std::string id;
  std::string model;
  int64_t created;
  Json echoed;  // members of the request that the response repeats
  enum class Item : uint8_t { kNone, kReasoning, kMessage } open = Item::kNone;
  int sequence = 0;       // number of the next event
  std::string text = {};  // of the open item
  Json output = Json::array();
  Finish finish = {};

  std::string event(const char* name, const Json& members) {
    Json json = {{"type", name}, {"sequence_number", sequence++}};
    json.update(members);
    return fmt::format("event: {}\n{}", name, sse_data(dump(json)));
  }

  Json response(const char* status, Json usage) const {
    Json json = {
        {"id", id}, {"object", "response"}, {"created_at", created}, {"status", status}, {"model", model}};
    json.update(echoed);
    json["error"] = nullptr;
    json["incomplete_details"] = nullptr;
    if (std::string_view(status) == "incomplete")
      json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["output"] = output;
    json["usage"] = std::move(usage);
    return json;
  }

  std::string item_id(const char* prefix) const { return fmt::format("{}_{}_{}", prefix, id, output.size()); }
  static Json text_part(const std::string& text) {
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
  }
  Json message_item(const char* status, Json content) const {
    return {{"type", "message"},
            {"id", item_id("msg")},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }
  Json reasoning_item(Json content) const {
    return {{"type", "reasoning"},
            {"id", item_id("rs")},
            {"summary", Json::array()},
            {"content", std::move(content)}};
  }

  std::string begin() {
    const Json now = response("in_progress", nullptr);
    std::string out = event("response.created", {{"response", now}});
    return out + event("response.in_progress", {{"response", now}});
  }

  std::string open_item(Item kind) {
    if (open == kind) return "";
    std::string out = close_item();
    open = kind;
    text.clear();
    const size_t index = output.size();
    if (kind == Item::kReasoning)
      return out + event("response.output_item.added",
                         {{"output_index", index}, {"item", reasoning_item(Json::array())}});
    out += event("response.output_item.added",
                 {{"output_index", index}, {"item", message_item("in_progress", Json::array())}});
    return out + event("response.content_part.added", {{"item_id", item_id("msg")},
                                                       {"output_index", index},
                                                       {"content_index", 0},
                                                       {"part", text_part("")}});
  }

  std::string close_item() {
    const Item was = std::exchange(open, Item::kNone);
    if (was == Item::kNone) return "";
    const size_t index = output.size();
    const bool is_message = was == Item::kMessage;
    const Json place = {
        {"item_id", item_id(is_message ? "msg" : "rs")}, {"output_index", index}, {"content_index", 0}};
    const auto at_place = [&](const Json& members) {
      Json json = place;
      json.update(members);
      return json;
    };
    std::string out;
    Json item;
    if (is_message) {
      out += event("response.output_text.done", at_place({{"text", text}, {"logprobs", Json::array()}}));
      out += event("response.content_part.done", at_place({{"part", text_part(text)}}));
      item = message_item("completed", Json::array({text_part(text)}));
    } else {
      out += event("response.reasoning_text.done", at_place({{"text", text}}));
      item = reasoning_item(Json::array({Json{{"type", "reasoning_text"}, {"text", text}}}));
    }
    out += event("response.output_item.done", {{"output_index", index}, {"item", item}});
    output.push_back(std::move(item));
    return out;
  }

  std::string add_text(Item kind, const std::string& more) {
    if (more.empty()) return "";
    std::string out = open_item(kind);
    text += more;
    const bool is_message = kind == Item::kMessage;
    Json json = {{"item_id", item_id(is_message ? "msg" : "rs")},
                 {"output_index", output.size()},
                 {"content_index", 0},
                 {"delta", more}};
    if (is_message) json["logprobs"] = Json::array();
    return out + event(is_message ? "response.output_text.delta" : "response.reasoning_text.delta", json);
  }

  std::string add_call(const text::ToolCall& call) {
    std::string out = close_item();
    const size_t index = output.size();
    Json item = {{"type", "function_call"}, {"id", item_id("fc")}, {"call_id", text::make_call_id()},
                 {"name", call.name},       {"arguments", ""},     {"status", "in_progress"}};
    out += event("response.output_item.added", {{"output_index", index}, {"item", item}});
    const Json place = {{"item_id", item_id("fc")}, {"output_index", index}};
    Json delta = place;
    delta["delta"] = call.arguments;
    out += event("response.function_call_arguments.delta", delta);
    Json done = place;
    done["name"] = call.name;
    done["arguments"] = call.arguments;
    out += event("response.function_call_arguments.done", done);
    item["arguments"] = call.arguments;
    item["status"] = "completed";
    out += event("response.output_item.done", {{"output_index", index}, {"item", item}});
    output.push_back(std::move(item));
    return out;
  }

  std::string update(const ChoiceUpdate& news) {
    std::string out = add_text(Item::kReasoning, news.delta.reasoning);
    out += add_text(Item::kMessage, news.delta.content);
    for (const text::ToolCall& call : news.delta.calls) out += add_call(call);
    if (news.finish) finish = *news.finish;
    return out;
  }

  Json end_state(const Usage& usage) const {
    return response(finish.reason == FinishReason::kLength ? "incomplete" : "completed",
                    responses_usage(usage));
  }
  std::string end(const Usage& usage) {
    std::string out =
        output.empty() && open == Item::kNone ? open_item(Item::kMessage) : "";  // an empty answer
    out += close_item();
    const char* name = finish.reason == FinishReason::kLength ? "response.incomplete" : "response.completed";
    return out + event(name, {{"response", end_state(usage)}});
  }
  std::string fail_with(const WireError& error) {
    Json failed = response("failed", nullptr);
    failed["error"] = {{"code", "server_error"}, {"message", error.message}};
    return event("response.failed", {{"response", std::move(failed)}});
  }
};

// What a response says of its request.
Json echoed_members(const JsonFields& fields) {
  Json json = Json::object();
  for (const char* name :
       {"instructions", "max_output_tokens", "temperature", "top_p", "metadata", "reasoning", "text"}) {
    const Json* value = fields.find(name);
    json[name] = value ? *value : Json(nullptr);
  }
  const Json* tools = fields.find("tools");
  json["tools"] = tools ? *tools : Json::array();
  const Json* choice = fields.find("tool_choice");
  json["tool_choice"] = choice ? *choice : Json("auto");
  json["parallel_tool_calls"] = fields.boolean("parallel_tool_calls").value_or(true);
  json["previous_response_id"] = nullptr;
  json["store"] = false;
  return json;
}

}  // namespace

Json to_chat_body_from_responses(const Json& body) {
  const JsonFields fields(body);
  refuse_state(fields);
  Json chat = Json::object();
  Json& messages = chat["messages"] = Json::array();
  if (const auto instructions = fields.text("instructions"))
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  const Json* input = fields.find("input");
  if (!input) fail_field("input", "is missing: need a string or a list of items");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    for (size_t i = 0; i < input->size(); ++i) add_item((*input)[i], fmt::format("input[{}]", i), messages);
  } else {
    fail_field("input", "got {}, need a string or a list of items", describe(*input));
  }
  for (const char* same : {"model", "temperature", "top_p", "stream", "tool_choice", "parallel_tool_calls",
                           "chat_template_kwargs", "sse_ping_interval"})
    if (const Json* value = fields.find(same)) chat[same] = *value;
  if (const Json* limit = fields.find("max_output_tokens")) chat["max_tokens"] = *limit;
  if (const Json* tools = fields.array("tools")) chat["tools"] = function_tools(*tools);
  if (const Json* text = fields.object("text"))
    if (const Json* format = JsonFields(*text, "text.").object("format")) {
      chat["response_format"] = *format;  // here the schema lies beside its type
      if (format->value("type", Json()) == "json_schema") chat["response_format"]["json_schema"] = *format;
    }
  if (const Json* reasoning = fields.object("reasoning"))
    if (const Json* effort = JsonFields(*reasoning, "reasoning.").find("effort"))
      chat["reasoning_effort"] = *effort;
  return chat;
}

HttpResponse openai_responses(const HttpRequest& request, Service& service) {
  const Json body = parse_json_object(request.body);
  ChatRequest chat = parse_chat_request(to_chat_body_from_responses(body), service.defaults);
  const std::string model = service.resolve_model(chat.model);
  build_prompt_ids(chat, service);
  auto format =
      std::make_shared<ResponsesFormat>(ResponsesFormat{.id = "resp_" + request.id,
                                                        .model = model,
                                                        .created = unix_seconds(),
                                                        .echoed = echoed_members(JsonFields(body))});
  const auto running = start_generation(service, request, chat.generation, "input");
  if (!chat.stream.stream) {
    std::vector<Answer> answers = collect(*running, 1, request.peer);
    format->update({.delta = std::move(answers.front().text), .finish = std::move(answers.front().finish)});
    format->end(running->usage());
    return {.body = dump(format->end_state(running->usage()))};
  }
  return stream_response(
      running, request.peer, chat.stream.keepalive_seconds,
      {.begin = [format] { return format->begin(); },
       .update = [format](const ChoiceUpdate& news, const Usage&) { return format->update(news); },
       .end = [format](const Usage& usage) { return format->end(usage); },
       .error = [format](const WireError& error) { return format->fail_with(error); }});
}

}  // namespace longspan::server
