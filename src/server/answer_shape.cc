#include "server/answer_shape.h"

#include <utility>

namespace longspan::server {
namespace {

constexpr size_t kMaxChoices = 4096;

AnswerShape any_object(std::string field) {
  return {.value = {{"type", "object"}}, .field = std::move(field)};
}

// A schema as an object, or as a text of JSON.
AnswerShape schema_shape(const Json& schema, std::string field) {
  Json value = schema;
  if (schema.is_string()) {
    try {
      value = parse_json_object(schema.get_ref<const std::string&>());
    } catch (const WireError& error) {
      fail_field(field, "{}", error.message);
    }
  }
  if (!value.is_object() && !value.is_boolean())
    fail_field(field, "got {}, need a JSON schema", describe(schema));
  return {.value = std::move(value), .field = std::move(field)};
}

AnswerShape choice_shape(const Json& choices, std::string field) {
  if (choices.empty() || choices.size() > kMaxChoices)
    fail_field(field, "got {} texts, need 1 to {}", choices.size(), kMaxChoices);
  for (const Json& one : choices)
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      fail_field(field, "got {}, need texts that are not empty", describe(one));
  return {.kind = AnswerShape::Kind::kChoice, .value = choices, .field = std::move(field)};
}

std::optional<AnswerShape> parse_response_format(const JsonFields& fields) {
  const Json* format = fields.object("response_format");
  if (!format) return std::nullopt;
  const JsonFields inner(*format, "response_format.");
  const std::string type = inner.text("type").value_or("");
  if (type.empty()) fail_field("response_format.type", "is missing: need text, json_object or json_schema");
  if (type == "text") return std::nullopt;
  const Json* holder = format;
  if (type == "json_schema") {
    holder = inner.object("json_schema");
    if (!holder) fail_field("response_format.json_schema", "is missing: need an object with a schema");
  } else if (type != "json_object") {
    fail_field("response_format", "got type '{}', need text, json_object or json_schema", type);
  }
  const auto schema = holder->find("schema");
  if (schema != holder->end() && !schema->is_null())
    return AnswerShape{.value = *schema, .field = "response_format"};
  if (type == "json_schema") fail_field("response_format.json_schema.schema", "is missing: need a schema");
  return any_object("response_format");
}

// What vLLM calls guided_NAME or structured_outputs.NAME; `prefix` is one or the other.
std::vector<AnswerShape> parse_named_shapes(const JsonFields& fields, const std::string& prefix) {
  std::vector<AnswerShape> shapes;
  const auto named = [&](const char* name) { return prefix + name; };
  if (const Json* schema = fields.find(named("json").c_str()))
    shapes.push_back(schema_shape(*schema, fields.name(named("json").c_str())));
  if (const auto regex = fields.text(named("regex").c_str()))
    shapes.push_back(
        {.kind = AnswerShape::Kind::kRegex, .value = *regex, .field = fields.name(named("regex").c_str())});
  if (const Json* choices = fields.array(named("choice").c_str()))
    shapes.push_back(choice_shape(*choices, fields.name(named("choice").c_str())));
  if (fields.boolean(named("json_object").c_str()).value_or(false))
    shapes.push_back(any_object(fields.name(named("json_object").c_str())));
  for (const char* name : {"grammar", "structural_tag", "whitespace_pattern"})
    fields.refuse(named(name).c_str(), "need a schema, a regular expression or a list of choices");
  return shapes;
}

}  // namespace

std::optional<AnswerShape> parse_answer_shape(const JsonFields& fields) {
  std::vector<AnswerShape> shapes = parse_named_shapes(fields, "guided_");
  if (auto shape = parse_response_format(fields)) shapes.insert(shapes.begin(), *std::move(shape));
  if (const auto regex = fields.text("regex"))  // SGLang's
    shapes.push_back({.kind = AnswerShape::Kind::kRegex, .value = *regex, .field = "regex"});
  if (const Json* outputs = fields.object("structured_outputs")) {
    const JsonFields inner(*outputs, "structured_outputs.");
    std::vector<AnswerShape> named = parse_named_shapes(inner, "");
    if (named.empty())
      fail_field("structured_outputs", "got {}, need json, json_object, regex or choice", describe(*outputs));
    for (AnswerShape& shape : named) shapes.push_back(std::move(shape));
  }
  if (shapes.size() > 1) fail_field(shapes[1].field, "beside {}: need one of them", shapes[0].field);
  if (shapes.empty()) return std::nullopt;
  return std::move(shapes.front());
}

}  // namespace longspan::server
