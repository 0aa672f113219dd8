#include "server/answer_form.h"

#include <algorithm>

#include "text/grammar/json_schema.h"
#include "text/grammar/tool_call_grammar.h"

namespace longspan::server {
namespace {

// The schema's and the tools' errors become those of a field.
template <class Build>
auto naming(const char* field, Build&& build) {
  try {
    return build();
  } catch (const Error& error) {
    fail_field(field, "{}", error.what());
  }
}

Json tools_of_choice(const Json& tools, const ToolChoice& choice) {
  Json chosen = Json::array();
  for (const Json& tool : tools)
    if (choice.name.empty() || tool["function"]["name"] == choice.name) chosen.push_back(tool);
  return chosen;
}

}  // namespace

std::optional<Json> parse_response_format(const JsonFields& fields) {
  const Json* format = fields.object("response_format");
  if (!format) return std::nullopt;
  const JsonFields inner(*format, "response_format.");
  const std::string type = inner.text("type").value_or("text");
  if (type == "text") return std::nullopt;
  const Json* holder = format;
  if (type == "json_schema") {
    holder = inner.object("json_schema");
    if (!holder) fail_field("response_format.json_schema", "is missing: need an object with a schema");
  } else if (type != "json_object") {
    fail_field("response_format", "got type '{}', need text, json_object or json_schema", type);
  }
  const auto schema = holder->find("schema");
  if (schema != holder->end() && !schema->is_null()) return *schema;
  if (type == "json_schema") fail_field("response_format.json_schema.schema", "is missing: need a schema");
  return Json{{"type", "object"}};
}

ToolChoice parse_tool_choice(const JsonFields& fields, const Json& tools) {
  const Json* choice = fields.find("tool_choice");
  const bool has_tools = !tools.is_null();
  if (!choice || *choice == "auto") return {has_tools ? ToolChoice::Mode::kAuto : ToolChoice::Mode::kNone};
  if (*choice == "none") return {ToolChoice::Mode::kNone};
  ToolChoice required{ToolChoice::Mode::kRequired};
  if (choice->is_object() && choice->value("type", Json("function")) == "function") {
    const Json function = choice->value("function", *choice);  // Responses has no envelope
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (!name.is_string() || name == "")
      fail_field("tool_choice", "got {}, need the name of a function", describe(*choice));
    required.name = name.get<std::string>();
  } else if (*choice != "required") {
    fail_field("tool_choice", "got {}, need auto, none, required or a function's name", describe(*choice));
  }
  if (!has_tools) fail_field("tool_choice", "got {}, but no tools", describe(*choice));
  if (tools_of_choice(tools, required).empty())
    fail_field("tool_choice", "got the name '{}', which is not among the tools", required.name.substr(0, 80));
  return required;
}

AnswerForm make_answer_form(const std::optional<Json>& schema, const Json& tools, const ToolChoice& choice,
                            bool parallel_calls) {
  const bool required = choice.mode == ToolChoice::Mode::kRequired;
  if (!required && !schema) return {};
  const bool with_calls = choice.mode != ToolChoice::Mode::kNone && !tools.is_null();
  text::GrammarBuilder builder;
  std::vector<text::NodeId> starts;
  AnswerForm form;
  if (!required) {
    text::TextRules rules(builder);
    text::JsonSchemaRules json(builder, rules, *schema);
    starts.push_back(naming("response_format", [&] { return json.value(*schema); }));
    form.source = dump(*schema);
  }
  if (with_calls) {
    const Json chosen = tools_of_choice(tools, choice);
    const auto count =
        parallel_calls && choice.name.empty() ? text::CallCount::kOneOrMore : text::CallCount::kOne;
    starts.push_back(naming("tools", [&] { return text::tool_call_rule(builder, chosen, count); }));
    form.source += fmt::format("\n{}{}", static_cast<int>(count), dump(chosen));
  }
  const char* field = required ? "tools" : "response_format";
  form.grammar = naming(
      field, [&] { return std::make_shared<const text::Grammar>(builder.build(builder.split(starts))); });
  return form;
}

std::shared_ptr<text::TokenMasks> TokenMaskCache::find_or_make(const AnswerForm& form) {
  if (!form.grammar) return nullptr;
  std::shared_ptr<const text::TokenTrie> trie;
  {
    const std::lock_guard lock(mutex_);
    if (!trie_) trie_ = std::make_shared<const text::TokenTrie>(tokenizer_);
    trie = trie_;
    const auto found =
        std::find_if(forms_.begin(), forms_.end(), [&](const auto& one) { return one.first == form.source; });
    if (found != forms_.end()) {
      forms_.splice(forms_.begin(), forms_, found);
      return found->second;
    }
  }
  auto masks =
      std::make_shared<text::TokenMasks>(form.grammar, trie);  // outside of the lock: it takes a while
  const std::lock_guard lock(mutex_);
  forms_.emplace_front(form.source, masks);
  if (forms_.size() > kMaxForms) forms_.pop_back();
  return masks;
}

}  // namespace longspan::server
