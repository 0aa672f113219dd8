// Calls of tools: what the grammar lets through, the parser reads back as arguments of the tool's schema.
#include "text/grammar/tool_call_grammar.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "text/grammar/json_validator.h"
#include "text/grammar/random_text.h"
#include "text/tool_parser.h"

namespace longspan::testing {
namespace {

using text::CallCount;
using text::Grammar;
using text::GrammarBuilder;
using text::matches;
using text::tool_call_grammar;

Json tool(const std::string& name, const Json& parameters, bool strict = false) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"parameters", parameters}, {"strict", strict}}}};
}

std::string call(const std::string& name, const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string text = "<tool_call>\n<function=" + name + ">\n";
  for (const auto& [key, value] : arguments) text += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  return text + "</function>\n</tool_call>";
}

const Json kSchema = Json::parse(R"({"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "unit": {"enum": ["C", "F"]}, "tags": {"type": "array", "items": {"type": "string"}},
    "detail": {"type": ["boolean", "null"]}, "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "note": {"type": "string", "maxLength": 4}, "where": {"$ref": "#/$defs/point"},
    "mode": {"anyOf": [{"$ref": "#/$defs/mode"}, {"type": "null"}]}}, "required": ["city"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}, "mode": {"enum": ["a", "b"], "type": "string"}}})");

TEST(ToolCallGrammar, TheFormOfTheTemplate) {
  const Grammar grammar = tool_call_grammar(
      Json::array({tool("weather", kSchema), tool("stop", Json::object())}), CallCount::kOneOrMore);
  for (const std::string& text :
       {call("stop", {}), call("weather", {{"city", "Kyoto"}}),
        call("weather", {{"city", ""}, {"days", "3"}, {"unit", "C"}}),
        call("weather", {{"city", "a\n<b>\n"}, {"tags", R"(["x", "<y>"])"}, {"detail", "null"}}),
        call("weather",
             {{"city", "x"}, {"code", "ABC"}, {"note", "no\n"}, {"where", R"({"x": 1.5})"}, {"mode", "a"}}),
        call("weather", {{"city", "x"}, {"mode", "null"}}), call("stop", {}) + "\n" + call("stop", {})})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const std::string& text :
       {std::string(), call("other", {}), call("weather", {}), call("weather", {{"days", "3"}}),
        call("weather", {{"city", "x"}, {"days", "15"}}), call("weather", {{"city", "x"}, {"unit", "K"}}),
        call("weather", {{"city", "x"}, {"code", "AB"}}), call("weather", {{"city", "x"}, {"note", "12345"}}),
        call("weather", {{"city", "x"}, {"where", "{}"}}), call("weather", {{"city", "a</parameter>b"}}),
        call("weather", {{"city", "<parameter=days>"}}), call("weather", {{"city", "x"}, {"mode", "c"}}),
        call("stop", {}) + " ", call("stop", {}).substr(1)})
    EXPECT_FALSE(matches(grammar, text)) << text;
  EXPECT_FALSE(matches(tool_call_grammar(Json::array({tool("stop", Json::object())}), CallCount::kOne),
                       call("stop", {}) + "\n" + call("stop", {})));
}

TEST(ToolCallGrammar, RandomCallsAreReadBackAsArgumentsOfTheSchema) {
  Random random(1);
  const Json tools =
      Json::array({tool("weather", kSchema), tool("go", Json::parse(R"({"type": "object", "properties": {
      "speed": {"type": "number", "minimum": 0}, "fast": {"type": "boolean"}, "n": {"const": 5}, "any": {},
      "mixed": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "nested": {"type": "object", "additionalProperties": {"type": "string"}}},
      "required": ["speed", "n"]})"))});
  const Grammar grammar = tool_call_grammar(tools, CallCount::kOneOrMore);
  int num_calls = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_text(grammar, random, random() % 300);
    if (text.empty()) continue;
    text::ToolParser parser{text::ToolSchema(tools)};
    std::vector<text::ToolEvent> events = parser.push(text);
    for (text::ToolEvent& event : parser.finish(text::AnswerEnd::kComplete))
      events.push_back(std::move(event));
    ASSERT_FALSE(events.empty()) << text;
    for (const text::ToolEvent& event : events) {
      ASSERT_TRUE(std::holds_alternative<text::ToolCall>(event)) << text;
      const auto& made = std::get<text::ToolCall>(event);
      const Json& schema = tools[made.name == "weather" ? 0 : 1]["function"]["parameters"];
      EXPECT_TRUE(JsonValidator(schema).fits(Json::parse(made.arguments))) << text << "\n" << made.arguments;
      ++num_calls;
    }
  }
  EXPECT_GT(num_calls, 200);
}

TEST(ToolCallGrammar, WhatCannotBeObeyedIsLeftOutUnlessTheToolIsStrict) {
  const Json schema =
      Json::parse(R"({"type": "object", "properties": {"a": {"type": "string", "format": "iri"},
                                      "b": {"type": "array", "uniqueItems": true}}, "required": ["a", "b"]})");
  const Grammar grammar = tool_call_grammar(Json::array({tool("f", schema)}), CallCount::kOne);
  EXPECT_TRUE(matches(grammar, call("f", {{"a", "any text"}, {"b", "[1, 1]"}})));
  EXPECT_FALSE(matches(grammar, call("f", {{"a", "any text"}, {"b", "1"}})));
  EXPECT_THROW(tool_call_grammar(Json::array({tool("f", schema, /*strict=*/true)}), CallCount::kOne), Error);
}

TEST(ToolCallGrammar, TextUpToACall) {
  GrammarBuilder builder;
  const Json tools =
      Json::array({tool("f", Json::parse(R"({"properties": {"n": {"type": "integer"}}, "required": ["n"]})"),
                        /*strict=*/true)});
  const Grammar grammar = builder.build(text::text_or_calls_rule(builder, tools, CallCount::kOneOrMore));
  const std::string one = call("f", {{"n", "5"}});
  for (const std::string& text :
       {std::string(), std::string("Hi < there <tool"), std::string("日本<<tool_cal"), one,
        "Let me see.\n\n" + one, "<<" + one, "<tool_call" + one, one + "\n" + one})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const std::string& text :
       {std::string("<tool_call>"), std::string("a<tool_call>b"), call("f", {{"n", "x"}}), call("g", {}),
        one + "b", "a" + one + "b", std::string("\xE6\x97")})
    EXPECT_FALSE(matches(grammar, text)) << text;
}

// T26: many tools with long descriptions.
TEST(ToolCallGrammar, T26_ManyTools) {
  Json tools = Json::array();
  for (int i = 0; i < 58; ++i) {
    Json schema = kSchema;
    schema["properties"]["city"]["description"] = std::string(2000, 'x');
    tools.push_back(tool("tool_" + std::to_string(i), schema));
  }
  const Grammar grammar = tool_call_grammar(tools, CallCount::kOneOrMore);
  EXPECT_TRUE(matches(grammar, call("tool_57", {{"city", "x"}})));
}

// T25: whatever a description says.
TEST(ToolCallGrammar, T25_DescriptionsMeanNothing) {
  for (const char* description : {"{\"", "[^", "\n\n", "<tool_call>", "(?<=x)*", "\\"}) {
    Json schema = kSchema;
    schema["description"] = description;
    schema["properties"]["city"]["description"] = description;
    EXPECT_NO_THROW(tool_call_grammar(Json::array({tool("glob", schema)}), CallCount::kOne));
  }
}

}  // namespace
}  // namespace longspan::testing
