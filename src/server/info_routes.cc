#include "server/info_routes.h"

#include "server/json_fields.h"
#include "server/openai_chat.h"
#include "text/utf8.h"

namespace longspan::server {
namespace {

Json model_json(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.started_unix_seconds},
          {"owned_by", "longspan"},
          {"root", name},
          {"parent", nullptr},
          {"max_model_len", service.engine.info().max_model_len}};
}

HttpResponse unavailable(const std::string& why) {
  return openai_error_response({.status = 503, .type = error_type(503), .message = why});
}

}  // namespace

std::optional<std::string> trouble(const Service& service) {
  const engine::EngineStatus status = service.engine.status();
  if (!status.healthy) return "the engine stopped after an error";
  if (status.stalled_seconds > service.options.stall_seconds)
    return fmt::format("the engine's step has run for {:.0f} s", status.stalled_seconds);
  return std::nullopt;
}

HttpResponse health(const HttpRequest&, Service& service) {
  if (const auto why = trouble(service)) return unavailable(*why);
  return {.body = R"({"status":"ok"})"};
}

HttpResponse ready(const HttpRequest&, Service& service) {
  if (const auto why = trouble(service)) return unavailable(*why);
  if (service.draining) return unavailable("the server is shutting down");
  return {.body = R"({"status":"ready"})"};
}

HttpResponse list_models(const HttpRequest&, Service& service) {
  Json data = Json::array();
  for (const std::string& name : service.options.model_names) data.push_back(model_json(service, name));
  return {.body = dump({{"object", "list"}, {"data", std::move(data)}})};
}

HttpResponse show_model(const HttpRequest& request, Service& service) {
  for (const std::string& name : service.options.model_names)
    if (name == request.parts.front()) return {.body = dump(model_json(service, name))};
  throw WireError{.status = 404,
                  .type = error_type(404),
                  .code = "model_not_found",
                  .param = "model",
                  .message = fmt::format("the model '{}' does not exist", request.parts.front())};
}

HttpResponse show_version(const HttpRequest&, Service& service) {
  return {.body = dump({{"version", service.options.version}})};
}

// {prompt, add_special_tokens?, parse_special?} or {messages}; {count, max_model_len, tokens, token_strs?}.
HttpResponse tokenize(const HttpRequest& request, Service& service) {
  const Json body = parse_json_object(request.body);
  const JsonFields fields(body);
  std::vector<int32_t> ids;
  if (fields.find("messages")) {
    ids = service.prompter.build(parse_chat_request(body, service.defaults).prompt).ids;
  } else {
    auto text = fields.text("prompt");
    if (!text) text = fields.text("content");
    if (!text) fail_field("prompt", "is missing: need a string, or messages");
    const bool special = fields.boolean("parse_special").value_or(true);
    ids = special && fields.boolean("add_special_tokens").value_or(true)
              ? service.tokenizer.encode_prompt(*text)
              : service.tokenizer.encode(
                    *text, special ? text::SpecialTokens::kParse : text::SpecialTokens::kAsText);
  }
  Json json = {
      {"count", ids.size()}, {"max_model_len", service.engine.info().max_model_len}, {"tokens", ids}};
  if (fields.boolean("return_token_strs").value_or(false)) {
    json["token_strs"] = Json::array();
    for (const int32_t id : ids)
      json["token_strs"].push_back(text::replace_invalid_utf8(service.tokenizer.token_bytes(id)));
  }
  return {.body = dump(json)};
}

HttpResponse detokenize(const HttpRequest& request, Service& service) {
  const Json body = parse_json_object(request.body);
  const JsonFields fields(body);
  const Json* tokens = fields.array("tokens");
  if (!tokens) fail_field("tokens", "is missing: need an array of token ids");
  const int64_t max_id = service.engine.info().config.vocab_size - 1;
  std::vector<int32_t> ids;
  for (const Json& token : *tokens)
    ids.push_back(static_cast<int32_t>(to_integer(token, "tokens", 0, max_id)));
  return {.body = dump({{"prompt", service.tokenizer.decode(ids, text::Decoding::kKeepSpecial)}})};
}

}  // namespace longspan::server
