#include "text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/tag_scanner.h"
#include "text/text_file.h"

namespace longspan::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";

const Json* find(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

bool flag(const Json& request, const char* key) {
  const Json* value = find(request, key);
  if (value && !value->is_boolean())
    fail(ErrorKind::kInvalid, "{} must be true or false, got {}", key, value->dump());
  return value && value->get<bool>();
}

// Clients send arguments as JSON text, because the API returns them so; templates iterate them as objects.
void parse_arguments(Json& call, const std::string& where) {
  if (!call.is_object()) fail(ErrorKind::kInvalid, "{} must be an object, got {}", where, call.type_name());
  Json& function = call.contains("function") ? call["function"] : call;
  if (!function.is_object())
    fail(ErrorKind::kInvalid, "{}.function must be an object, got {}", where, function.type_name());
  if (!find(function, "arguments")) {
    function["arguments"] = Json::object();
    return;
  }
  Json& arguments = function["arguments"];
  if (!arguments.is_string()) return;
  const std::string text = arguments.get<std::string>();
  if (trim(text).empty()) {
    arguments = Json::object();
    return;
  }
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded())
    fail(ErrorKind::kInvalid, "{}.function.arguments is not JSON: got '{}'", where, text.substr(0, 80));
  arguments = std::move(parsed);
}

Json prepare_messages(const Json& request) {
  const Json* given = find(request, "messages");
  if (!given || !given->is_array()) fail(ErrorKind::kInvalid, "messages must be an array");
  Json messages = *given;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object())
      fail(ErrorKind::kInvalid, "messages[{}] must be an object, got {}", i, messages[i].type_name());
    if (!find(messages[i], "tool_calls")) continue;
    Json& calls = messages[i]["tool_calls"];
    if (!calls.is_array()) fail(ErrorKind::kInvalid, "messages[{}].tool_calls must be an array", i);
    for (size_t k = 0; k < calls.size(); ++k)
      parse_arguments(calls[k], fmt::format("messages[{}].tool_calls[{}]", i, k));
  }
  return messages;
}

// Stands behind the text of the message to continue, so that the cut is found even when the text is just "e"
// and so that templates which trim keep its final spaces. Private-use characters: no tokenizer or template
// knows them.
constexpr std::string_view kCutMark = "\xEF\xA3\xBFlongspan cut\xEF\xA3\xBF";

// The text that a continuation appends to: the content, or the last text part of a list. Null when there is
// none.
Json* continued_text(Json& message) {
  Json* text = message.contains("content") ? &message["content"] : nullptr;
  if (text && text->is_array()) {
    Json* last = nullptr;
    for (Json& part : *text)
      if (part.is_object() && part.contains("text")) last = &part["text"];
    text = last;
  }
  const bool has_text = text && text->is_string() && !trim(text->get_ref<const std::string&>()).empty();
  return has_text ? text : nullptr;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::vector<NamedTemplate>& sources, SpecialTokens special_tokens)
    : special_tokens_(std::move(special_tokens)) {
  if (sources.empty()) fail(ErrorKind::kNotFound, "the model has no chat template");
  for (const NamedTemplate& source : sources) {
    const bool is_default = source.name == kDefault;
    const std::string title = is_default ? "chat template" : fmt::format("chat template '{}'", source.name);
    templates_.emplace_back(source.name, jinja::Template(title, source.source));
  }
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model_dir) {
  const TokenizerConfig config = load_tokenizer_config(model_dir);
  std::vector<NamedTemplate> sources = config.chat_templates;
  const std::filesystem::path file = model_dir / "chat_template.jinja";
  if (std::filesystem::exists(file)) sources = {{kDefault, read_text_file(file)}};
  return ChatTemplate(sources, {config.bos_token, config.eos_token});
}

const jinja::Template& ChatTemplate::select(bool has_tools) const {
  const auto named = [this](const char* name) {
    return std::find_if(templates_.begin(), templates_.end(),
                        [name](const auto& entry) { return entry.first == name; });
  };
  if (const auto tool_use = named(kToolUse); has_tools && tool_use != templates_.end())
    return tool_use->second;
  if (const auto standard = named(kDefault); standard != templates_.end()) return standard->second;
  return templates_.front().second;
}

std::string ChatTemplate::render(const Json& request, const jinja::RenderOptions& options) const {
  if (!request.is_object())
    fail(ErrorKind::kInvalid, "a chat request must be an object, got {}", request.type_name());
  Json context = Json::object();
  // Always there, as in the library that templates are written for: they test `tools is not none`.
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  if (special_tokens_.bos_token) context["bos_token"] = *special_tokens_.bos_token;
  if (special_tokens_.eos_token) context["eos_token"] = *special_tokens_.eos_token;
  for (const auto& [key, value] : request.items())
    if (!value.is_null() && key != "messages" && key != "continue_final_message") context[key] = value;
  if (context["tools"].is_array() && context["tools"].empty()) context["tools"] = nullptr;
  context["add_generation_prompt"] = flag(request, "add_generation_prompt");
  Json messages = prepare_messages(request);

  const jinja::Template& source = select(!context["tools"].is_null());
  Json* continued = nullptr;
  if (flag(request, "continue_final_message") && !messages.empty()) {
    continued = continued_text(messages.back());
    if (!continued) messages.erase(messages.size() - 1);
    context["add_generation_prompt"] = !continued;
  }
  if (continued) *continued = continued->get<std::string>().append(kCutMark);
  context["messages"] = std::move(messages);
  std::string prompt = source.render(context, options);
  if (continued) {
    const size_t cut = prompt.rfind(kCutMark);
    if (cut == prompt.npos)
      fail(ErrorKind::kInvalid,
           "continue_final_message: the template does not print the text of the last message");
    prompt.resize(cut);
  }
  return prompt;
}

}  // namespace longspan::text
