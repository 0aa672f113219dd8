#include "text/tool_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include "core/error.h"
#include "text/grammar/schema_flattener.h"
#include "text/jinja/json.h"
#include "text/jinja/parser.h"
#include "text/tag_scanner.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

using Json = nlohmann::ordered_json;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

bool starts_with_any_of(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); });
}

std::string json_type(const std::string& name) {
  if (starts_with_any_of(name, {"int", "uint", "long", "short", "unsigned"})) return "integer";
  if (starts_with_any_of(name, {"num", "float", "double"})) return "number";
  if (name.starts_with("bool")) return "boolean";
  if (starts_with_any_of(name, {"object", "dict"})) return "object";
  if (starts_with_any_of(name, {"array", "list"})) return "array";
  return "string";
}

const char* type_of_value(const Json& value) {
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_boolean()) return "boolean";
  if (value.is_structured()) return value.is_array() ? "array" : "object";
  return value.is_null() ? "null" : "string";
}

void add_type(const Json& name, ParameterType& type, bool& found) {
  if (!name.is_string()) return;
  if (name == "null") {
    type.nullable = true;
  } else if (!found) {
    type.name = json_type(lower(name.get<std::string>()));
    found = true;
  }
}

void add_types_of(const Json& schema, ParameterType& type, bool& found) {
  if (!schema.is_object()) return;
  const Json name = schema.value("type", Json());
  if (name.is_array())
    for (const Json& one : name) add_type(one, type, found);
  add_type(name, type, found);
  if (!name.is_null()) return;
  if (schema.contains("items")) return add_type("array", type, found);
  if (schema.contains("properties")) return add_type("object", type, found);
  if (schema.contains("const")) add_type(type_of_value(schema["const"]), type, found);
  if (schema.contains("enum") && schema["enum"].is_array())
    for (const Json& value : schema["enum"]) add_type(type_of_value(value), type, found);
}

// References and allOf hide a type.
Json without_references(const Json& schema, const Json& root) {
  try {
    return schema.is_object() ? SchemaFlattener(root, Refused::kDrop).flatten_options(schema, "#") : schema;
  } catch (const Error&) {
    return schema;
  }
}

std::optional<Json> parse_integer(std::string_view text) {
  text = trim(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<Json> parse_number(std::string_view text) {
  if (auto integer = parse_integer(text)) return integer;
  text = trim(text);
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || !std::isfinite(number))
    return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (number == std::floor(number) && std::abs(number) <= kExact) return static_cast<int64_t>(number);
  return number;
}

// None for what is not JSON or too deep: writing a value recurses over it.
std::optional<Json> parse_json_value(std::string_view text) {
  constexpr int kMaxNested = 128;
  bool too_deep = false;
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    return !(too_deep |= depth > kMaxNested);
  };
  Json parsed = Json::parse(text, check_depth, /*allow_exceptions=*/false);
  if (too_deep || parsed.is_discarded()) return std::nullopt;
  return parsed;
}

// A literal of Python has the form of a template expression without names and calls.
std::optional<Json> literal(const jinja::Expr& expr) {
  if (const auto* node = std::get_if<jinja::Literal>(&expr.node)) {
    jinja::Budget budget{jinja::Limits{}};
    return parse_json_value(jinja::to_json(node->value, {}, budget));
  }
  if (const auto* node = std::get_if<jinja::ListDisplay>(&expr.node)) {
    Json list = Json::array();
    for (const auto& item : node->items) {
      auto value = literal(*item);
      if (!value) return std::nullopt;
      list.push_back(*std::move(value));
    }
    return list;
  }
  if (const auto* node = std::get_if<jinja::DictDisplay>(&expr.node)) {
    Json object = Json::object();
    for (const auto& [key, item] : node->entries) {
      const auto name = literal(*key);
      auto value = literal(*item);
      if (!name || !value) return std::nullopt;
      object[name->is_string() ? name->get<std::string>() : name->dump()] = *std::move(value);
    }
    return object;
  }
  const auto* sign = std::get_if<jinja::Unary>(&expr.node);
  if (!sign || sign->op != jinja::UnaryOp::kNegative) return std::nullopt;
  const auto value = literal(*sign->operand);
  if (!value || !value->is_number()) return std::nullopt;
  return value->is_number_integer() ? Json(-value->get<int64_t>()) : Json(-value->get<double>());
}

std::optional<Json> parse_python(std::string_view text) {
  try {
    const jinja::Body body = jinja::parse(jinja::Text("{{ " + replace_invalid_utf8(text) + " }}"));
    const auto* print = body.size() == 1 ? std::get_if<jinja::Print>(&body[0].node) : nullptr;
    return print ? literal(*print->value) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Json> parse_structure(std::string_view text) {
  auto parsed = parse_json_value(text);
  return parsed ? parsed : parse_python(text);
}

}  // namespace

ParameterType parameter_type(const Json& schema) {
  ParameterType type;
  bool found = false;
  add_types_of(schema, type, found);
  for (const char* key : {"anyOf", "oneOf"})
    if (schema.is_object() && schema.contains(key) && schema[key].is_array())
      for (const Json& option : schema[key]) add_types_of(option, type, found);
  return type;
}

ToolSchema::ToolSchema(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json function = tool.value("function", tool);
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) continue;
    const Json parameters = function.value("parameters", Json());
    Json properties = parameters.is_object() ? parameters.value("properties", Json()) : Json();
    if (!properties.is_object()) properties = nullptr;
    for (Json& property : properties) property = without_references(property, parameters);
    parameters_[function["name"].get<std::string>()] = std::move(properties);
  }
}

bool ToolSchema::may_have_parameter(std::string_view tool, std::string_view parameter) const {
  const auto at = parameters_.find(std::string(tool));
  return at == parameters_.end() || at->second.is_null() || at->second.contains(std::string(parameter));
}

Json ToolSchema::value(std::string_view tool, std::string_view parameter, std::string_view text) const {
  const auto at = parameters_.find(std::string(tool));
  const std::string key(parameter);
  if (at == parameters_.end() || !at->second.is_object() || !at->second.contains(key))
    return std::string(text);
  const ParameterType type = parameter_type(at->second[key]);
  const std::string_view trimmed = trim(text);
  if (type.nullable && (trimmed == "null" || trimmed == "None")) return nullptr;
  std::optional<Json> value;
  if (type.name == "integer") value = parse_integer(text);
  if (type.name == "number") value = parse_number(text);
  if (type.name == "boolean") value = lower(trimmed) == "true";
  if (type.name == "object" || type.name == "array") value = parse_structure(text);
  return value ? *std::move(value) : Json(std::string(text));
}

}  // namespace longspan::text
