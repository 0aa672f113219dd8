#include "server/openai_completions.h"

#include <memory>
#include <set>

#include "text/utf8.h"

namespace longspan::server {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's

bool is_id_list(const Json& json) { return json.is_array() && !json.empty() && json[0].is_number(); }

// "text", ["text", ...], [ids] or [[ids], ...].
std::vector<std::vector<int32_t>> parse_prompts(const JsonFields& fields, const Service& service) {
  const Json* prompt = fields.find("prompt");
  if (!prompt) fail_field("prompt", "is missing: need a string or an array");
  const Json list = prompt->is_string() || is_id_list(*prompt) ? Json::array({*prompt}) : *prompt;
  if (!list.is_array()) fail_field("prompt", "got {}, need a string or an array", describe(*prompt));
  if (list.empty()) fail_field("prompt", "is empty: need at least one prompt");
  const auto max_id = static_cast<int64_t>(service.engine.info().config.vocab_size) - 1;
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& one : list) {
    if (one.is_string()) {
      prompts.push_back(
          service.tokenizer.encode(one.get_ref<const std::string&>(), text::SpecialTokens::kParse));
      continue;
    }
    if (!one.is_array())
      fail_field("prompt", "got {} in the list, need a string or token ids", describe(one));
    std::vector<int32_t> ids;
    for (const Json& id : one) ids.push_back(static_cast<int32_t>(to_integer(id, "prompt", 0, max_id)));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

struct CompletionFormat {
  const Service& service;
  std::string id;
  std::string model;
  int64_t created;
  bool logprobs;
  bool include_usage;
  std::vector<std::string> echo;  // what each prompt's choices begin with; empty: nothing
  int32_t num_choices;            // of each prompt
  std::vector<size_t> offsets;    // [choices] bytes of text whose logprobs were told

  Json envelope() const {
    return {{"id", id}, {"object", "text_completion"}, {"created", created}, {"model", model}};
  }
  std::string prefix(size_t index) const {
    return echo.empty() ? "" : echo[index / static_cast<size_t>(num_choices)];
  }

  // {tokens, token_logprobs, top_logprobs, text_offset}; offsets count from the start of the answer.
  Json logprobs_json(size_t index, const std::vector<engine::TokenOutput>& tokens) {
    if (!logprobs) return nullptr;
    Json json = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
    for (const engine::TokenOutput& token : tokens) {
      const auto name = [&](int32_t one) {
        return text::replace_invalid_utf8(service.tokenizer.token_bytes(one));
      };
      json["tokens"].push_back(name(token.token));
      json["token_logprobs"].push_back(token.logprob);
      Json top = Json::object();
      for (const engine::Logprob& one : token.top) top[name(one.token)] = one.logprob;
      json["top_logprobs"].push_back(std::move(top));
      json["text_offset"].push_back(offsets[index]);
      offsets[index] += service.tokenizer.token_bytes(token.token).size();
    }
    return json;
  }

  Json choice(size_t index, std::string text, Json logprobs_of_it, const Finish* finish) const {
    return {{"index", index},
            {"text", std::move(text)},
            {"logprobs", std::move(logprobs_of_it)},
            {"finish_reason", finish ? Json(finish_name(finish->reason)) : Json(nullptr)},
            {"stop_reason", finish ? stop_reason(*finish) : Json(nullptr)}};
  }

  Json whole(const std::vector<Answer>& answers, const Usage& usage) {
    Json json = envelope();
    for (size_t i = 0; i < answers.size(); ++i)
      json["choices"].push_back(choice(i, prefix(i) + answers[i].text.content,
                                       logprobs_json(i, answers[i].tokens), &answers[i].finish));
    json["usage"] = usage_json(usage);
    return json;
  }

  std::set<int32_t> begun = {};  // choices whose prompt was echoed

  std::string update(const ChoiceUpdate& news) {
    const auto index = static_cast<size_t>(news.index);
    std::string text = news.delta.content;
    if (begun.insert(news.index).second) text = prefix(index) + text;
    if (text.empty() && !news.finish && (!logprobs || news.tokens.empty())) return "";
    Json json = envelope();
    json["choices"].push_back(choice(index, std::move(text), logprobs_json(index, news.tokens),
                                     news.finish ? &*news.finish : nullptr));
    if (include_usage) json["usage"] = nullptr;
    return sse_data(dump(json));
  }

  std::string end(const Usage& usage) const {
    std::string out;
    if (include_usage) {
      Json json = envelope();
      json["choices"] = Json::array();
      json["usage"] = usage_json(usage);
      out = sse_data(dump(json));
    }
    return out + sse_data("[DONE]");
  }
};

}  // namespace

CompletionRequest parse_completion_request(const Json& body, const Service& service) {
  const JsonFields fields(body);
  fields.refuse("suffix", "this server has no fill-in-the-middle");
  CompletionRequest completion{.model = fields.text("model"),
                               .generation = parse_generation(fields, service),
                               .stream = parse_stream_options(fields, service),
                               .echo = fields.boolean("echo").value_or(false)};
  GenerationRequest& generation = completion.generation;
  if (!fields.find("max_tokens") && !fields.find("max_completion_tokens"))
    generation.max_tokens = kDefaultMaxTokens;
  if (const auto logprobs = fields.integer("logprobs", 0, engine::kMaxLogprobs)) {
    if (completion.echo) fail_field("logprobs", "not supported together with echo");
    generation.sampling.num_logprobs = static_cast<int32_t>(*logprobs);
  }
  generation.prompts = parse_prompts(fields, service);
  const auto num_choices = static_cast<int64_t>(generation.prompts.size()) * generation.num_choices;
  if (num_choices > service.options.max_choices)
    fail_field("prompt", "got {} prompts times n = {}, need at most {} choices", generation.prompts.size(),
               generation.num_choices, service.options.max_choices);
  if (completion.echo)
    for (const std::vector<int32_t>& ids : generation.prompts)
      completion.texts.push_back(service.tokenizer.decode(ids, text::Decoding::kKeepSpecial));
  return completion;
}

HttpResponse completions(const HttpRequest& request, Service& service) {
  CompletionRequest completion = parse_completion_request(parse_json_object(request.body), service);
  const std::string model = service.resolve_model(completion.model);
  const size_t num_choices =
      completion.generation.prompts.size() * static_cast<size_t>(completion.generation.num_choices);
  auto format = std::make_shared<CompletionFormat>(
      CompletionFormat{.service = service,
                       .id = random_id("cmpl-"),
                       .model = model,
                       .created = unix_seconds(),
                       .logprobs = completion.generation.sampling.num_logprobs >= 0,
                       .include_usage = completion.stream.include_usage,
                       .echo = std::move(completion.texts),
                       .num_choices = completion.generation.num_choices,
                       .offsets = std::vector<size_t>(num_choices)});
  const auto generation = start_generation(service, std::move(completion.generation), "prompt");
  if (!completion.stream.stream) {
    const std::vector<Answer> answers = collect(*generation, num_choices, request.peer);
    return {.body = dump(format->whole(answers, generation->usage()))};
  }
  StreamFormat events{
      .update = [format](const ChoiceUpdate& news) { return format->update(news); },
      .end = [format](const Usage& usage) { return format->end(usage); },
      .error =
          [](const WireError& error) { return sse_data(openai_error_body(error)) + sse_data("[DONE]"); }};
  return stream_response(generation, request.peer, completion.stream.keepalive_seconds, std::move(events));
}

}  // namespace longspan::server
