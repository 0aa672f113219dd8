#include "server/openai_chat.h"

#include <set>
#include <utility>

#include "server/chat_messages.h"

namespace longspan::server {
namespace {

void refuse_legacy(const JsonFields& fields) {
  const Json* functions = fields.array("functions");
  if (functions && !functions->empty()) fields.refuse("functions", "use tools");
  fields.refuse("function_call", "use tool_choice");
  if (fields.boolean("echo").value_or(false)) fields.refuse("echo", "chat answers do not repeat the prompt");
  fields.refuse("web_search_options", "there is no web search");
  fields.refuse("chat_template", "the template is the model's own");
  if (const Json* modalities = fields.array("modalities"))
    for (const Json& one : *modalities)
      if (one != "text") fail_field("modalities", "got {}, this model writes text only", describe(one));
}

// Variables of the template: chat_template_kwargs, and what other servers' clients send for thinking.
void add_template_variables(const JsonFields& fields, Json& prompt) {
  if (const Json* effort = fields.find("reasoning_effort")) {
    static const std::set<Json> kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    if (!kEfforts.contains(*effort))
      fail_field("reasoning_effort", "got {}, need none, minimal, low, medium, high, xhigh or max",
                 describe(*effort));
    const bool off = *effort == "none" || *effort == "minimal";
    prompt["reasoning_effort"] = *effort;
    prompt["enable_thinking"] = !off;
  }
  if (const auto thinking = fields.boolean("enable_thinking")) prompt["enable_thinking"] = *thinking;
  if (const Json* kwargs = fields.object("chat_template_kwargs")) {
    static const std::set<std::string> kReserved = {"messages", "tools", "add_generation_prompt",
                                                    "continue_final_message"};
    for (const auto& [key, value] : kwargs->items()) {
      if (kReserved.contains(key))
        fail_field("chat_template_kwargs", "got '{}', which has a field of its own", key);
      prompt[key] = value;
    }
  }
}

Json build_prompt(const JsonFields& fields, const Json& tools) {
  Json messages = normalize_messages(*fields.array("messages"));
  bool add_prompt = fields.boolean("add_generation_prompt").value_or(true);
  bool go_on = fields.boolean("continue_final_message").value_or(false);
  if (go_on && fields.boolean("add_generation_prompt").value_or(false))
    fail_field("continue_final_message", "got true together with add_generation_prompt");
  if (!fields.find("continue_final_message") && !fields.find("add_generation_prompt"))
    go_on = ends_with_assistant(messages);  // an empty one is dropped by the template room
  if (go_on && !ends_with_assistant(messages))
    fail_field("continue_final_message", "the last message is not an assistant's text");
  if (go_on) add_prompt = false;
  Json prompt = {{"messages", std::move(messages)},
                 {"add_generation_prompt", add_prompt},
                 {"continue_final_message", go_on}};
  if (!tools.is_null()) prompt["tools"] = tools;
  add_template_variables(fields, prompt);
  return prompt;
}

void parse_logprobs(const JsonFields& fields, GenerationRequest& generation) {
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, engine::kMaxLogprobs);
  if (top && *top > 0 && !logprobs) fail_field("top_logprobs", "got {} without logprobs: true", *top);
  if (logprobs) generation.sampling.num_logprobs = static_cast<int32_t>(top.value_or(0));
}

Json call_json(const text::ToolCall& call) {
  return {{"id", text::make_call_id()},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

Json logprobs_json(const text::Tokenizer& tokenizer, const std::vector<engine::TokenOutput>& tokens) {
  Json content = Json::array();
  for (const engine::TokenOutput& token : tokens) {
    Json entry = token_json(tokenizer, token.token, token.logprob);
    Json top = Json::array();
    for (const engine::Logprob& one : token.top) top.push_back(token_json(tokenizer, one.token, one.logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

// One answer to one request: what all its chunks have in common.
struct ChatFormat {
  const Service& service;
  std::string id;
  std::string model;
  int64_t created;
  bool logprobs;
  bool include_reasoning;
  bool include_usage;
  bool continuous_usage;
  size_t num_choices;
  bool names_call;                      // tool_choice did
  std::set<int32_t> begun = {};         // choices whose role was sent
  std::vector<int32_t> num_calls = {};  // [num_choices] sent so far

  Json envelope(const char* object) const {
    return {{"id", id}, {"object", object}, {"created", created}, {"model", model}};
  }

  // As OpenAI has it: a call that was asked for by name is an ordinary end.
  const char* finish_reason(const Finish& finish) const {
    const bool named = names_call && finish.reason == FinishReason::kToolCalls;
    return finish_name(named ? FinishReason::kStop : finish.reason);
  }

  Json whole_choice(size_t index, const Answer& answer) const {
    const Delta& text = answer.text;
    Json message = {
        {"role", "assistant"},
        {"content", text.content.empty() && !text.calls.empty() ? Json(nullptr) : Json(text.content)}};
    if (include_reasoning && !text.reasoning.empty()) message["reasoning_content"] = text.reasoning;
    for (const text::ToolCall& call : text.calls) message["tool_calls"].push_back(call_json(call));
    return {{"index", index},
            {"message", std::move(message)},
            {"logprobs", logprobs ? logprobs_json(service.tokenizer, answer.tokens) : Json(nullptr)},
            {"finish_reason", finish_reason(answer.finish)},
            {"stop_reason", stop_reason(answer.finish)}};
  }

  Json whole(const std::vector<Answer>& answers, const Usage& usage) const {
    Json json = envelope("chat.completion");
    for (size_t i = 0; i < answers.size(); ++i) json["choices"].push_back(whole_choice(i, answers[i]));
    json["usage"] = usage_json(usage);
    return json;
  }

  std::string chunk(const ChoiceUpdate& news, const Usage& usage, Json delta, Json logprobs_of_it = nullptr,
                    Json finish = nullptr) const {
    Json json = envelope("chat.completion.chunk");
    Json choice = {{"index", news.index},
                   {"delta", std::move(delta)},
                   {"logprobs", std::move(logprobs_of_it)},
                   {"finish_reason", std::move(finish)}};
    if (!choice["finish_reason"].is_null()) choice["stop_reason"] = stop_reason(*news.finish);
    json["choices"].push_back(std::move(choice));
    if (include_usage) json["usage"] = continuous_usage ? usage_json(usage) : Json(nullptr);
    return sse_data(dump(json));
  }

  // Deltas of one update: role first, then reasoning and content, then calls, then the end.
  std::string update(const ChoiceUpdate& news, const Usage& usage) {
    std::string out;
    if (begun.insert(news.index).second) out += chunk(news, usage, {{"role", "assistant"}, {"content", ""}});
    Json delta = Json::object();
    if (include_reasoning && !news.delta.reasoning.empty()) delta["reasoning_content"] = news.delta.reasoning;
    if (!news.delta.content.empty()) delta["content"] = news.delta.content;
    num_calls.resize(num_choices);
    for (const text::ToolCall& call : news.delta.calls) {
      Json json = {{"index", num_calls[static_cast<size_t>(news.index)]++}};
      json.update(call_json(call));
      delta["tool_calls"].push_back(std::move(json));
    }
    const bool has_logprobs = logprobs && !news.tokens.empty();
    Json entries = has_logprobs ? logprobs_json(service.tokenizer, news.tokens) : Json(nullptr);
    if (!delta.empty() || has_logprobs) {
      if (delta.empty()) delta["content"] = "";  // tokens whose text is still held back
      out += chunk(news, usage, std::move(delta), std::move(entries));
    }
    if (news.finish) out += chunk(news, usage, Json::object(), nullptr, finish_reason(*news.finish));
    return out;
  }

  std::string progress(const PrefillProgress& news) const {
    Json json = envelope("chat.completion.chunk");
    json["choices"] = Json::array();
    json["prompt_progress"] = {{"total", news.total}, {"cache", news.cached}, {"processed", news.processed}};
    return sse_data(dump(json));
  }

  std::string end(const Usage& usage) const {
    std::string out;
    if (include_usage) {
      Json json = envelope("chat.completion.chunk");
      json["choices"] = Json::array();
      json["usage"] = usage_json(usage);
      out = sse_data(dump(json));
    }
    return out + sse_data("[DONE]");
  }
};

}  // namespace

ChatRequest parse_chat_request(const Json& body, const RequestDefaults& defaults) {
  const JsonFields fields(body);
  if (!fields.array("messages")) fail_field("messages", "is missing: need an array");
  refuse_legacy(fields);
  ChatRequest chat{.model = fields.text("model"),
                   .generation = parse_generation(fields, defaults),
                   .stream = parse_stream_options(fields, defaults),
                   .include_reasoning = fields.boolean("include_reasoning").value_or(true)};
  Json tools = normalize_tools(fields.array("tools"));
  const ToolChoice choice = parse_tool_choice(fields, tools);
  if (choice.mode == ToolChoice::Mode::kNone) tools = nullptr;
  chat.names_call = !choice.name.empty();
  chat.prompt = build_prompt(fields, tools);
  if (!tools.is_null()) chat.generation.answer.tools = std::make_shared<text::ToolSchema>(tools);
  const bool parallel = fields.boolean("parallel_tool_calls").value_or(true);
  chat.generation.answer.parallel_calls = parallel;
  chat.generation.form = make_answer_form(parse_answer_shape(fields), tools, choice, parallel);
  if (chat.generation.form.grammar) chat.generation.answer.call_in_reasoning = text::CallInReasoning::kIsText;
  parse_logprobs(fields, chat.generation);
  return chat;
}

std::string build_prompt_ids(ChatRequest& chat, Service& service) {
  ChatPrompt prompt = service.prompter.build(std::move(chat.prompt));
  chat.generation.answer.reasoning = prompt.opens_reasoning ? ReasoningMode::kOpen : ReasoningMode::kClosed;
  chat.generation.prompts = {std::move(prompt.ids)};
  chat.generation.masks = service.masks.find_or_make(chat.generation.form);
  return std::move(prompt.text);
}

HttpResponse chat_completions(const HttpRequest& request, Service& service) {
  ChatRequest chat = parse_chat_request(parse_json_object(request.body), service.defaults);
  const std::string model = service.resolve_model(chat.model);
  build_prompt_ids(chat, service);
  const auto num_choices = static_cast<size_t>(chat.generation.num_choices);
  auto format =
      std::make_shared<ChatFormat>(ChatFormat{.service = service,
                                              .id = "chatcmpl-" + request.id,
                                              .model = model,
                                              .created = unix_seconds(),
                                              .logprobs = chat.generation.sampling.num_logprobs >= 0,
                                              .include_reasoning = chat.include_reasoning,
                                              .include_usage = chat.stream.include_usage,
                                              .continuous_usage = chat.stream.continuous_usage,
                                              .num_choices = num_choices,
                                              .names_call = chat.names_call});
  const auto running = start_generation(service, request, chat.generation, "messages");
  if (!chat.stream.stream) {
    const std::vector<Answer> answers = collect(*running, num_choices, request.peer);
    return {.body = dump(format->whole(answers, running->usage()))};
  }
  StreamFormat events{
      .update = [format](const ChoiceUpdate& news,
                         const Usage& usage) { return format->update(news, usage); },
      .end = [format](const Usage& usage) { return format->end(usage); },
      .error =
          [](const WireError& error) { return sse_data(openai_error_body(error)) + sse_data("[DONE]"); }};
  if (chat.stream.progress)
    events.progress = [format](const PrefillProgress& news) { return format->progress(news); };
  return stream_response(running, request.peer, chat.stream.keepalive_seconds, std::move(events));
}

HttpResponse apply_template(const HttpRequest& request, Service& service) {
  ChatRequest chat = parse_chat_request(parse_json_object(request.body), service.defaults);
  return {.body = dump({{"prompt", build_prompt_ids(chat, service)}})};
}

}  // namespace longspan::server
