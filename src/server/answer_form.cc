#include "server/answer_form.h"

#include <algorithm>
#include <set>

#include "text/grammar/json_schema.h"
#include "text/grammar/tool_call_grammar.h"

namespace longspan::server {
namespace {

// The schema's and the tools' errors become those of a field.
template <class Build>
auto naming(const std::string& field, Build&& build) {
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

bool has_strict(const Json& tools) {
  return std::any_of(tools.begin(), tools.end(),
                     [](const Json& tool) { return tool["function"].value("strict", Json()) == true; });
}

// ^ and $ are implied, and allowed at the ends.
std::string anchored(std::string pattern) {
  if (pattern.starts_with("^")) pattern.erase(0, 1);
  if (pattern.ends_with("$")) {
    size_t num_escapes = 0;
    while (num_escapes + 1 < pattern.size() && pattern[pattern.size() - 2 - num_escapes] == '\\')
      ++num_escapes;
    if (num_escapes % 2 == 0) pattern.pop_back();
  }
  return "^(?:" + pattern + ")$";
}

text::NodeId shape_rule(text::GrammarBuilder& builder, const AnswerShape& shape) {
  switch (shape.kind) {
    case AnswerShape::Kind::kSchema: {
      text::TextRules rules(builder);
      return text::JsonSchemaRules(builder, rules, shape.value).value(shape.value);
    }
    case AnswerShape::Kind::kRegex:
      return text::add_regex(builder, text::parse_regex(anchored(shape.value.get<std::string>())),
                             text::Spelling::kPlain, "", builder.end_of_rule());
    case AnswerShape::Kind::kChoice: {
      std::set<std::string> texts;
      for (const Json& one : shape.value) texts.insert(one.get<std::string>());
      std::vector<text::GrammarBuilder::Ending> endings;
      for (const std::string& text : texts) endings.emplace_back(text, builder.end_of_rule());
      return builder.one_of(std::move(endings));
    }
  }
  return builder.reserve();
}

}  // namespace

ToolChoice parse_tool_choice(const JsonFields& fields, const Json& tools) {
  const Json* choice = fields.find("tool_choice");
  const bool has_tools = !tools.is_null();
  if (!choice || *choice == "auto") return {has_tools ? ToolChoice::Mode::kAuto : ToolChoice::Mode::kNone};
  if (*choice == "none") return {ToolChoice::Mode::kNone};
  ToolChoice required{ToolChoice::Mode::kRequired};
  if (choice->is_object() && choice->value("type", Json("function")) == "function") {
    const Json function = choice->value("function", *choice);  // Responses has no envelope
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (!name.is_string() || name.get_ref<const std::string&>().empty())
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

AnswerForm make_answer_form(const std::optional<AnswerShape>& shape, const Json& tools,
                            const ToolChoice& choice, bool parallel_calls) {
  const bool required = choice.mode == ToolChoice::Mode::kRequired;
  const bool with_calls = choice.mode != ToolChoice::Mode::kNone && !tools.is_null();
  const bool text_or_calls = !required && !shape && with_calls && has_strict(tools);
  if (!required && !shape && !text_or_calls) return {};
  text::GrammarBuilder builder;
  std::vector<text::NodeId> starts;
  AnswerForm form;
  if (shape && !required) {
    starts.push_back(naming(shape->field, [&] { return shape_rule(builder, *shape); }));
    form.source = fmt::format("{}{}", static_cast<int>(shape->kind), dump(shape->value));
  }
  if (with_calls) {
    const Json chosen = tools_of_choice(tools, choice);
    const auto count =
        parallel_calls && choice.name.empty() ? text::CallCount::kOneOrMore : text::CallCount::kOne;
    starts.push_back(naming("tools", [&] {
      return text_or_calls ? text::text_or_calls_rule(builder, chosen, count)
                           : text::tool_call_rule(builder, chosen, count);
    }));
    form.source += fmt::format("\n{}{}{}", text_or_calls, static_cast<int>(count), dump(chosen));
  }
  form.grammar = naming(shape && !required ? shape->field : "tools", [&] {
    return std::make_shared<const text::Grammar>(builder.build(builder.split(starts)));
  });
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
