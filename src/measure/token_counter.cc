#include "measure/token_counter.h"

#include <memory>
#include <optional>

#include "core/error.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// Null where the server has no such route.
Json posted(const LoadTarget& target, const std::string& path, const Json& body) {
  const server::HttpAnswer answer = server::http_request(
      target.url, target.timeouts,
      {.method = "POST", .path = path, .headers = bench_headers(target.api_key), .body = body.dump()});
  if (answer.status != 200) return nullptr;
  const Json reply = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  return reply.is_object() ? reply : Json();
}

// {count} or {tokens}; none where the server has no such route or does not know the fields.
std::optional<int64_t> counted_by_server(const LoadTarget& target, const Json& body) {
  if (body.is_null()) return std::nullopt;
  const Json reply = posted(target, "/tokenize", body);
  if (reply.is_null()) return std::nullopt;
  if (reply.contains("count") && reply["count"].is_number_integer()) return reply["count"].get<int64_t>();
  if (reply.contains("tokens") && reply["tokens"].is_array())
    return static_cast<int64_t>(reply["tokens"].size());
  return std::nullopt;
}

struct Dialect {
  Json (*body)(const LoadTarget&, const std::string& text);  // of /tokenize; null: it cannot be asked so
  bool chat_only;
  bool with_template;
};

Json messages_of(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

Json ask_messages(const LoadTarget& target, const std::string& text) {
  Json body = {{"model", target.model}, {"messages", messages_of(text)}, {"add_generation_prompt", true}};
  if (target.extra_body.contains("chat_template_kwargs"))
    body["chat_template_kwargs"] = target.extra_body["chat_template_kwargs"];
  return body;
}
Json ask_prompt(const LoadTarget& target, const std::string& text) {
  return {{"model", target.model}, {"prompt", text}};
}
Json ask_content(const LoadTarget&, const std::string& text) { return {{"content", text}}; }
// llama.cpp's /tokenize knows no messages, but another of its routes puts them into the template.
Json ask_templated(const LoadTarget& target, const std::string& text) {
  const Json reply = posted(target, "/apply-template", ask_messages(target, text));
  if (!reply.is_object() || !reply.contains("prompt")) return nullptr;
  return {{"content", reply["prompt"]}, {"add_special", true}, {"parse_special", true}};
}

constexpr Dialect kDialects[] = {
    {ask_messages, /*chat_only=*/true, /*with_template=*/true},
    {ask_templated, /*chat_only=*/true, /*with_template=*/true},
    {ask_prompt, /*chat_only=*/false, /*with_template=*/false},
    {ask_content, /*chat_only=*/false, /*with_template=*/false},
};

}  // namespace

TokenCounter server_token_counter(const LoadTarget& target) {
  for (const Dialect& dialect : kDialects) {
    if (dialect.chat_only && target.endpoint != BenchEndpoint::kChat) continue;
    if (counted_by_server(target, dialect.body(target, "One two three.")).value_or(0) <= 0) continue;
    const auto count = [target, body = dialect.body](const std::string& text) {
      const auto counted = counted_by_server(target, body(target, text));
      if (!counted) fail(ErrorKind::kEnvironment, "/tokenize refuses a text of {} bytes", text.size());
      return *counted;
    };
    return {.count = count,
            .source = "the server's /tokenize",
            .with_template = dialect.with_template || target.endpoint == BenchEndpoint::kCompletions};
  }
  return {.count = nullptr, .source = "nothing"};
}

TokenCounter local_token_counter(const std::filesystem::path& model_dir, const LoadTarget& target) {
  const auto tokenizer = std::make_shared<const text::Tokenizer>(text::Tokenizer::load(model_dir));
  if (target.endpoint == BenchEndpoint::kCompletions)
    return {
        .count = [tokenizer](const std::string& text) { return std::ssize(tokenizer->encode_prompt(text)); },
        .source = model_dir.string()};
  const auto chat = std::make_shared<const text::ChatTemplate>(text::ChatTemplate::load(model_dir));
  Json prompt = target.extra_body.value("chat_template_kwargs", Json::object());
  if (!prompt.is_object())
    fail(ErrorKind::kInvalid, "chat_template_kwargs: got {}, need an object", prompt.dump());
  prompt["add_generation_prompt"] = true;
  const auto count = [tokenizer, chat, prompt](const std::string& text) {
    Json whole = prompt;
    whole["messages"] = messages_of(text);
    return std::ssize(tokenizer->encode(chat->render(whole), text::SpecialTokens::kParse));
  };
  return {.count = count, .source = model_dir.string()};
}

}  // namespace longspan::measure
