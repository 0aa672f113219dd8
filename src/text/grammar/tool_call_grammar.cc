#include "text/grammar/tool_call_grammar.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "text/tool_schema.h"

namespace longspan::text {
namespace {

using Json = SchemaJson;

// A name that the parser reads back as it is.
bool is_plain_name(const std::string& name) {
  const auto odd = [](char c) { return static_cast<uint8_t>(c) < 0x20; };
  return !name.empty() && name.find_first_of("<>\"'") == name.npos && name.front() != ' ' &&
         name.back() != ' ' && !name.starts_with("name=") && std::none_of(name.begin(), name.end(), odd);
}

// The schema, of the values of one type and null: what ToolSchema reads as such.
Json restricted(Json flat, const ParameterType& type) {
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!flat.contains(keyword) || !flat[keyword].is_array()) continue;
    Json kept = Json::array();
    for (const Json& option : flat[keyword])
      if (option.is_object() &&
          (option.value("type", Json()) == "null" || parameter_type(option).name == type.name))
        kept.push_back(option);
    flat[keyword] = std::move(kept);
    return flat;
  }
  flat["type"] = type.nullable ? Json::array({type.name, "null"}) : Json(type.name);
  return flat;
}

// One tool: what stands between the line of its name and the end of the function.
class ToolRules {
 public:
  ToolRules(GrammarBuilder& builder, TextRules& rules, const Json& function)
      : builder_(builder),
        rules_(rules),
        parameters_(function.value("parameters", Json::object())),
        strict_(function.value("strict", Json()) == true),
        json_(builder, rules, parameters_, strict_ ? Refused::kThrow : Refused::kDrop) {}

  NodeId arguments(NodeId next) {
    NodeId rest = builder_.literal("</function>", next);
    if (!parameters_.is_object()) return rest;
    const Json flat = json_.flattener().flatten(parameters_, "#");
    const Json properties = flat.value("properties", Json::object());
    if (!properties.is_object()) return rest;
    std::set<std::string> required;
    for (const Json& name : flat.value("required", Json::array()))
      if (name.is_string()) required.insert(name.get<std::string>());
    for (auto at = properties.rbegin(); at != properties.rend(); ++at) {
      const bool must = required.contains(at.key());
      if (!is_plain_name(at.key())) {
        if (!must) continue;
        fail(ErrorKind::kUnsupported, "parameter '{}': a name of this form is not supported",
             at.key().substr(0, 80));
      }
      const NodeId value = parameter(at.value(), schema_place("#/properties", at.key()));
      const NodeId one = builder_.literal("<parameter=" + at.key() + ">\n",
                                          builder_.call(value, builder_.literal("\n", rest)));
      rest = must ? one : builder_.split({one, rest});
    }
    return rest;
  }

 private:
  // The rule of a value and the tag behind it.
  NodeId parameter(const Json& schema, const std::string& place) {
    if (strict_) return exact(schema, place);
    try {
      return exact(schema, place);
    } catch (const Error&) {  // what was built of it is never reached
      const ParameterType type = schema.is_object() ? parameter_type(schema) : ParameterType{};
      return type.name == "string" ? rules_.bare_text(builder_.end_of_rule())
                                   : ended(json_.value_of_type(Json::object(), type.name, place));
    }
  }

  NodeId exact(const Json& schema, const std::string& place) {
    const Json flat = schema.is_object() ? json_.flattener().flatten_options(schema, place) : Json::object();
    const ParameterType type = parameter_type(flat);
    const Json own = restricted(flat, type);
    if (type.name != "string") return ended(json_.value(own, place));
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (!own.contains(keyword) || !own[keyword].is_array()) continue;
      Json base = own;
      base.erase(keyword);
      std::vector<NodeId> texts;
      for (const Json& option : own[keyword]) {
        const Json joined = json_.flattener().join(base, option, place);
        texts.push_back(joined.value("type", Json()) == "null" ? null_text() : text(joined, place));
      }
      return builder_.split(std::move(texts));
    }
    return type.nullable ? builder_.split({text(own, place), null_text()}) : text(own, place);
  }

  NodeId ended(NodeId value) {
    return builder_.call(value, builder_.literal(kParameterEnd, builder_.end_of_rule()));
  }
  NodeId null_text() { return builder_.literal("null" + std::string(kParameterEnd), builder_.end_of_rule()); }

  // A string as it is, without quotes.
  NodeId text(const Json& flat, const std::string& place) {
    const NodeId end = builder_.end_of_rule();
    if (flat.contains("enum") || flat.contains("const")) {
      std::vector<GrammarBuilder::Ending> texts;
      for (const Json& one : flat.contains("enum") ? flat["enum"] : Json::array({flat["const"]}))
        if (one.is_string() && one.get_ref<const std::string&>().find('<') == std::string::npos)
          texts.emplace_back(one.get<std::string>() + std::string(kParameterEnd), end);
      return texts.empty() ? builder_.reserve() : builder_.one_of(std::move(texts));
    }
    if (const auto regex = JsonSchemaRules::regex_of(flat, place))
      return add_regex(builder_, *regex, Spelling::kBareInCall, kParameterEnd, end);
    const auto bounds = JsonSchemaRules::bounds_of(flat, "minLength", "maxLength", place);
    return rules_.bare_text(end, bounds.min, bounds.max);
  }

  GrammarBuilder& builder_;
  TextRules& rules_;
  const Json parameters_;
  bool strict_;
  JsonSchemaRules json_;
};

}  // namespace

NodeId tool_call_rule(GrammarBuilder& builder, const Json& tools, CallCount count) {
  TextRules rules(builder, TextPlace::kToolCall);
  const NodeId first = builder.reserve();
  NodeId after_call = builder.end_of_rule();
  if (count == CallCount::kOneOrMore) after_call = builder.split({after_call, builder.literal("\n", first)});
  const NodeId close = builder.literal("\n</tool_call>", after_call);
  std::vector<GrammarBuilder::Ending> by_name;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = tools[i].at("function");
    const auto name = function.at("name").get<std::string>();
    try {
      if (!is_plain_name(name)) fail(ErrorKind::kUnsupported, "a name of this form is not supported");
      by_name.emplace_back(name + ">\n", ToolRules(builder, rules, function).arguments(close));
    } catch (const Error& error) {
      fail(error.kind, "tool '{}': {}", name.substr(0, 80), error.what());
    }
  }
  builder.set_split(first, {builder.literal("<tool_call>\n<function=", builder.one_of(std::move(by_name)))});
  return first;
}

NodeId text_or_calls_rule(GrammarBuilder& builder, const Json& tools, CallCount count) {
  constexpr std::string_view kTag = "<tool_call>";
  const NodeId end = builder.end_of_rule();
  const NodeId calls = tool_call_rule(builder, tools, count);
  // behind[i]: what may follow the first i characters of the tag, which is never complete in the text.
  std::vector<NodeId> behind(kTag.size());
  behind[0] = builder.reserve();
  behind[1] = builder.reserve();
  for (size_t i = kTag.size(); i-- > 0;) {
    const std::string others = i == 0 ? "^[^<]$" : fmt::format("^[^<{}]$", kTag[i]);
    std::vector<NodeId> ways = {end, calls,
                                add_regex(builder, parse_regex(others), Spelling::kPlain, "", behind[0])};
    if (i > 0) ways.push_back(builder.literal("<", behind[1]));
    if (i + 1 < kTag.size()) ways.push_back(builder.literal(kTag.substr(i, 1), behind[i + 1]));
    i < 2 ? builder.set_split(behind[i], std::move(ways)) : void(behind[i] = builder.split(std::move(ways)));
  }
  return behind[0];
}

Grammar tool_call_grammar(const Json& tools, CallCount count) {
  GrammarBuilder builder;
  const NodeId start = tool_call_rule(builder, tools, count);
  return builder.build(start);
}

}  // namespace longspan::text
