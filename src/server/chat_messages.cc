#include "server/chat_messages.h"

namespace longspan::server {
namespace {

constexpr size_t kMaxToolName = 256;

std::string text_of_part(const Json& part, const std::string& where) {
  if (part.is_string()) return part.get<std::string>();
  if (!part.is_object()) fail_field(where, "got {}, need a text part", describe(part));
  const JsonFields fields(part, where + ".");
  const std::string type = fields.text("type").value_or("text");
  if (type == "refusal") return fields.text("refusal").value_or("");
  if (type != "text" && type != "input_text" && type != "output_text")
    fail_field(where + ".type", "got '{}', this model reads text only", type);
  const auto text = fields.text("text");
  if (!text) fail_field(where + ".text", "is missing: need a string");
  return *text;
}

std::string text_of(const Json& message, const std::string& where) {
  const Json* content = JsonFields(message, where + ".").find("content");
  if (!content) return "";
  if (content->is_string()) return content->get<std::string>();
  const std::string place = where + ".content";
  if (!content->is_array())
    fail_field(place, "got {}, need a string, null or a list of parts", describe(*content));
  std::string text;
  for (size_t i = 0; i < content->size(); ++i)
    text += text_of_part((*content)[i], fmt::format("{}[{}]", place, i));
  return text;
}

// {id, type, function: {name, arguments}}; arguments as they came, the template room reads both forms.
Json normalize_calls(const Json& calls, const std::string& where) {
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    if (!calls[i].is_object()) fail_field(place, "got {}, need an object", describe(calls[i]));
    const JsonFields call(calls[i], place + ".");
    const Json* function = call.object("function");
    if (!function) fail_field(place + ".function", "is missing: need an object");
    const JsonFields fields(*function, place + ".function.");
    const auto name = fields.text("name");
    if (!name || name->empty()) fail_field(place + ".function.name", "is missing: need a string");
    const Json* arguments = fields.find("arguments");
    if (arguments && !arguments->is_string() && !arguments->is_object())
      fail_field(place + ".function.arguments", "got {}, need a string of JSON or an object",
                 describe(*arguments));
    Json one = {{"type", "function"}, {"function", {{"name", *name}}}};
    if (const auto id = call.text("id")) one["id"] = *id;
    one["function"]["arguments"] = arguments ? *arguments : Json::object();
    out.push_back(std::move(one));
  }
  return out;
}

Json normalize_assistant(const Json& message, const std::string& where) {
  const JsonFields fields(message, where + ".");
  Json out = {{"role", "assistant"}, {"content", text_of(message, where)}};
  auto reasoning = fields.text("reasoning_content");
  if (!reasoning) {
    const Json* other = fields.find("reasoning");
    if (other && other->is_string()) reasoning = other->get<std::string>();
  }
  if (reasoning) out["reasoning_content"] = *reasoning;
  const Json* calls = fields.array("tool_calls");
  if (calls && !calls->empty()) out["tool_calls"] = normalize_calls(*calls, where + ".tool_calls");
  return out;
}

void append_paragraph(std::string& text, const std::string& more) {
  if (more.empty()) return;
  if (!text.empty()) text += "\n\n";
  text += more;
}

}  // namespace

Json normalize_messages(const Json& messages) {
  if (!messages.is_array()) fail_field("messages", "got {}, need an array", describe(messages));
  if (messages.empty()) fail_field("messages", "is empty: need at least one message");
  std::string system;
  bool has_system = false;
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    const Json& message = messages[i];
    if (!message.is_object()) fail_field(where, "got {}, need an object", describe(message));
    const JsonFields fields(message, where + ".");
    const std::string role = fields.text("role").value_or("");
    if (role == "system" || role == "developer") {
      append_paragraph(system, text_of(message, where));
      has_system = true;
    } else if (role == "user") {
      out.push_back({{"role", "user"}, {"content", text_of(message, where)}});
    } else if (role == "assistant") {
      out.push_back(normalize_assistant(message, where));
    } else if (role == "tool" || role == "function") {
      Json result = {{"role", "tool"}, {"content", text_of(message, where)}};
      if (const auto id = fields.text("tool_call_id")) result["tool_call_id"] = *id;
      if (const auto name = fields.text("name")) result["name"] = *name;
      out.push_back(std::move(result));
    } else {
      fail_field(where + ".role", "got '{}', need system, developer, user, assistant or tool", role);
    }
  }
  if (has_system) out.insert(out.begin(), Json{{"role", "system"}, {"content", system}});
  return out;
}

Json normalize_tools(const Json* tools) {
  if (!tools || tools->empty()) return nullptr;
  Json out = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const Json& tool = (*tools)[i];
    if (!tool.is_object()) fail_field(where, "got {}, need an object", describe(tool));
    const JsonFields fields(tool, where + ".");
    const std::string type = fields.text("type").value_or("function");
    if (type != "function") fail_field(where + ".type", "got '{}', need 'function'", type);
    const Json* function = fields.object("function");
    const JsonFields inner(function ? *function : tool, where + (function ? ".function." : "."));
    const auto name = inner.text("name");
    if (!name || name->empty() || name->size() > kMaxToolName)
      fail_field(inner.name("name"), "got {}, need 1 to {} characters",
                 name ? "one of another length" : "none", kMaxToolName);
    inner.object("parameters");
    if (function) {
      out.push_back(tool);
    } else {
      Json bare = tool;
      bare.erase("type");
      out.push_back({{"type", "function"}, {"function", std::move(bare)}});
    }
  }
  return out;
}

bool ends_with_assistant(const Json& normalized_messages) {
  const Json& last = normalized_messages.back();
  return last["role"] == "assistant" && !last.contains("tool_calls");
}

}  // namespace longspan::server
