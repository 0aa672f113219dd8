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
  const bool whole = fields.boolean("add_special_tokens").value_or(true);
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& one : list) {
    if (one.is_string()) {
      const auto& text = one.get_ref<const std::string&>();
      prompts.push_back(whole ? service.tokenizer.encode_prompt(text)
                              : service.tokenizer.encode(text, text::SpecialTokens::kParse));
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
  bool continuous_usage;
  bool only_prompt;               // max_tokens 0: the one token that was made is not shown
  std::vector<std::string> echo;  // what each prompt's choices begin with; empty: nothing
  int32_t num_choices;            // of each prompt
  std::vector<size_t> offsets;    // [choices] bytes of text whose logprobs were told
  const RunningRequest* running = nullptr;
  std::set<int32_t> begun = {};  // choices whose prompt was echoed

  Json envelope() const {
    return {{"id", id}, {"object", "text_completion"}, {"created", created}, {"model", model}};
  }

  // One more token in {tokens, token_logprobs, top_logprobs, text_offset}; a null score is the prompt's
  // first.
  void add_entry(Json& json, size_t index, int32_t id_of_it, const engine::TokenOutput* score) {
    const auto name = [&](int32_t one) {
      return text::replace_invalid_utf8(service.tokenizer.token_bytes(one));
    };
    Json top = score ? Json::object() : Json(nullptr);
    if (score)
      for (const engine::Logprob& one : score->top) top[name(one.token)] = one.logprob;
    json["tokens"].push_back(name(id_of_it));
    json["token_logprobs"].push_back(score ? Json(score->logprob) : Json(nullptr));
    json["top_logprobs"].push_back(std::move(top));
    json["text_offset"].push_back(offsets[index]);
    offsets[index] += service.tokenizer.token_bytes(id_of_it).size();
  }

  // The choice's first part begins with the prompt, where it is echoed.
  Json choice(const ChoiceUpdate& news) {
    const auto index = static_cast<size_t>(news.index);
    const size_t prompt_idx = index / static_cast<size_t>(num_choices);
    const bool first = begun.insert(news.index).second;
    std::string text = first && !echo.empty() ? echo[prompt_idx] : "";
    if (!only_prompt) text += news.delta.content;
    Json entries = nullptr;
    if (logprobs) {
      for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
        entries[list] = Json::array();
      if (const PromptScores* scores = first ? running->prompt_scores(prompt_idx) : nullptr) {
        add_entry(entries, index, scores->prompt().front(), nullptr);
        for (const engine::TokenOutput& score : scores->scores())
          add_entry(entries, index, score.token, &score);
      }
      if (!only_prompt)
        for (const engine::TokenOutput& token : news.tokens) add_entry(entries, index, token.token, &token);
    }
    return {{"index", index},
            {"text", std::move(text)},
            {"logprobs", std::move(entries)},
            {"finish_reason", news.finish ? Json(finish_name(news.finish->reason)) : Json(nullptr)},
            {"stop_reason", news.finish ? stop_reason(*news.finish) : Json(nullptr)}};
  }

  Json usage_of(Usage usage) const {
    if (only_prompt) usage.completion_tokens = 0;
    return usage_json(usage);
  }

  Json whole(std::vector<Answer> answers, const Usage& usage) {
    Json json = envelope();
    for (size_t i = 0; i < answers.size(); ++i)
      json["choices"].push_back(choice({.index = static_cast<int32_t>(i),
                                        .delta = std::move(answers[i].text),
                                        .tokens = std::move(answers[i].tokens),
                                        .finish = std::move(answers[i].finish)}));
    json["usage"] = usage_of(usage);
    return json;
  }

  std::string update(const ChoiceUpdate& news, const Usage& usage) {
    const bool has_text = !news.delta.content.empty() || (!begun.contains(news.index) && !echo.empty());
    if (!has_text && !news.finish && (!logprobs || news.tokens.empty())) return "";
    Json json = envelope();
    json["choices"].push_back(choice(news));
    if (include_usage) json["usage"] = continuous_usage ? usage_of(usage) : Json(nullptr);
    return sse_data(dump(json));
  }

  std::string end(const Usage& usage) const {
    std::string out;
    if (include_usage) {
      Json json = envelope();
      json["choices"] = Json::array();
      json["usage"] = usage_of(usage);
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
                               .generation = parse_generation(fields, service.defaults),
                               .stream = parse_stream_options(fields, service.defaults),
                               .echo = fields.boolean("echo").value_or(false)};
  GenerationRequest& generation = completion.generation;
  if (!fields.find("max_tokens") && !fields.find("max_completion_tokens"))
    generation.max_tokens = kDefaultMaxTokens;
  completion.only_prompt = completion.echo && fields.integer("max_tokens", -1, INT64_MAX) == 0;
  if (completion.only_prompt) generation.max_tokens = 1;  // the engine has no request without a token
  if (const auto logprobs = fields.integer("logprobs", 0, engine::kMaxLogprobs)) {
    generation.sampling.num_logprobs = static_cast<int32_t>(*logprobs);
    if (completion.echo) generation.prompt_logprobs = generation.sampling.num_logprobs;
  }
  generation.prompts = parse_prompts(fields, service);
  generation.form = make_answer_form(parse_answer_shape(fields), nullptr, {ToolChoice::Mode::kNone}, false);
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
                       .id = "cmpl-" + request.id,
                       .model = model,
                       .created = unix_seconds(),
                       .logprobs = completion.generation.sampling.num_logprobs >= 0,
                       .include_usage = completion.stream.include_usage,
                       .continuous_usage = completion.stream.continuous_usage,
                       .only_prompt = completion.only_prompt,
                       .echo = std::move(completion.texts),
                       .num_choices = completion.generation.num_choices,
                       .offsets = std::vector<size_t>(num_choices)});
  completion.generation.masks = service.masks.find_or_make(completion.generation.form);
  const auto running = start_generation(service, request, completion.generation, "prompt");
  format->running = running.get();
  if (!completion.stream.stream) {
    std::vector<Answer> answers = collect(*running, num_choices, request.peer);
    return {.body = dump(format->whole(std::move(answers), running->usage()))};
  }
  StreamFormat events{
      .update = [format](const ChoiceUpdate& news,
                         const Usage& usage) { return format->update(news, usage); },
      .end = [format](const Usage& usage) { return format->end(usage); },
      .error =
          [](const WireError& error) { return sse_data(openai_error_body(error)) + sse_data("[DONE]"); }};
  return stream_response(running, request.peer, completion.stream.keepalive_seconds, std::move(events));
}

}  // namespace longspan::server
