#include "text/tool_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "text/every_split.h"
#include "text/reasoning_parser.h"

namespace longspan::text {
namespace {

using Json = nlohmann::ordered_json;

const Json kTools = Json::parse(R"([
  {"type": "function", "function": {"name": "read_pdf", "parameters": {"type": "object", "properties": {
    "path": {"type": "string"}, "page": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "multiply", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "all_types", "parameters": {"type": "object", "properties": {
    "text": {"type": "string"}, "maybe_text": {"type": ["string", "null"]}, "count": {"type": "integer"},
    "maybe_count": {"anyOf": [{"type": "null"}, {"type": "integer"}]}, "ratio": {"type": "number"},
    "flag": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "integer"}},
    "grid": {"type": "array"}, "object": {"type": "object"}, "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "size": {"type": "uint32"}, "untyped": {"description": "x"}, "shape": {"properties": {"x": {}}}}}}},
  {"name": "bare", "parameters": {}}
])");

struct Parsed {
  std::string content;
  std::vector<std::string> calls;  // "name {arguments}"
  bool operator==(const Parsed&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << "{content: '" << parsed.content << "'";
  for (const std::string& call : parsed.calls) out << ", " << call;
  return out << "}";
}

Parsed parse(const std::vector<std::string>& pieces, AnswerEnd end = AnswerEnd::kComplete) {
  ToolParser parser{ToolSchema(kTools)};
  Parsed result;
  const auto add = [&](const std::vector<ToolEvent>& events) {
    for (const ToolEvent& event : events) {
      if (const auto* call = std::get_if<ToolCall>(&event)) {
        EXPECT_TRUE(Json::accept(call->arguments)) << call->arguments;
        result.calls.push_back(call->name + " " + call->arguments);
      } else {
        EXPECT_FALSE(std::get<std::string>(event).empty());
        result.content += std::get<std::string>(event);
      }
    }
  };
  for (const std::string& piece : pieces) add(parser.push(piece));
  add(parser.finish(end));
  return result;
}

void expect(const std::string& text, const Parsed& want, AnswerEnd end = AnswerEnd::kComplete) {
  for (const auto& pieces : every_split(text, 20)) ASSERT_EQ(parse(pieces, end), want) << text;
}

std::string parameter(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}
std::string call(const std::string& function, const std::string& parameters) {
  return "<tool_call>\n<function=" + function + ">\n" + parameters + "</function>\n</tool_call>";
}

// T14, T15: every parameter, however the text arrives.
TEST(ToolParser, CallWithParameters) {
  expect("\n\n" + call("read_pdf", parameter("page", "1")), {"", {R"(read_pdf {"page":1})"}});
  expect(call("multiply", parameter("a", "5") + parameter("b", "42")), {"", {R"(multiply {"a":5,"b":42})"}});
  expect(call("bare", ""), {"", {"bare {}"}});
}

// T16, T18: the text around calls is content, the calls are not.
TEST(ToolParser, ContentAroundCalls) {
  const std::string one = call("multiply", parameter("a", "1"));
  const std::string two = call("read_pdf", parameter("path", "x"));
  expect("Let me see.\n\n" + one + "\n" + two + "\n\nDone.\n",
         {"Let me see.Done.\n", {R"(multiply {"a":1})", R"(read_pdf {"path":"x"})"}});
  expect("I'll do it:" + one, {"I'll do it:", {R"(multiply {"a":1})"}});
  expect("No calls here.\n", {"No calls here.\n", {}});
  expect("a < b and <b>bold</b> <", {"a < b and <b>bold</b> <", {}});
  expect("The <tool_call> tag opens a call.", {"The <tool_call> tag opens a call.", {}});
  expect("<function=unknown> is text", {"<function=unknown> is text", {}});
}

// T19
TEST(ToolParser, ValuesHaveTheTypesOfTheSchema) {
  const auto value = [](const std::string& name, const std::string& text) {
    const Parsed parsed = parse({call("all_types", parameter(name, text))});
    const std::string& got = parsed.calls.at(0);
    return got.substr(got.find(':') + 1, got.size() - got.find(':') - 2);
  };
  EXPECT_EQ(value("text", "02134"), R"("02134")");
  EXPECT_EQ(value("text", "1e5"), R"("1e5")");
  EXPECT_EQ(value("text", "null"), R"("null")");
  EXPECT_EQ(value("text", "{\"a\": 1}"), R"("{\"a\": 1}")");
  EXPECT_EQ(value("maybe_text", "null"), "null");
  EXPECT_EQ(value("maybe_text", "x"), R"("x")");
  EXPECT_EQ(value("count", "30"), "30");
  EXPECT_EQ(value("count", " -7 "), "-7");
  EXPECT_EQ(value("count", "thirty"), R"("thirty")");
  EXPECT_EQ(value("count", "null"), R"("null")");
  EXPECT_EQ(value("size", "8"), "8");
  EXPECT_EQ(value("maybe_count", "None"), "null");
  EXPECT_EQ(value("maybe_count", "5"), "5");
  EXPECT_EQ(value("either", "5"), "5");
  EXPECT_EQ(value("either", "five"), R"("five")");
  EXPECT_EQ(value("ratio", "0.5"), "0.5");
  EXPECT_EQ(value("ratio", "2.0"), "2");
  EXPECT_EQ(value("ratio", "1e5"), "100000");
  EXPECT_EQ(value("ratio", "half"), R"("half")");
  EXPECT_EQ(value("flag", "True"), "true");
  EXPECT_EQ(value("flag", "false"), "false");
  EXPECT_EQ(value("flag", "yes"), "false");
  EXPECT_EQ(value("list", "[1, 2, 3]"), "[1,2,3]");
  EXPECT_EQ(value("grid", "[[1, [2]], []]"), "[[1,[2]],[]]");
  EXPECT_EQ(value("object", R"({"b": 1, "a": {"c": null}})"), R"({"b":1,"a":{"c":null}})");
  EXPECT_EQ(value("object", "{'a': True, 'b': [None, -1.5], 'c': ('x',)}"),
            R"({"a":true,"b":[null,-1.5],"c":["x"]})");
  EXPECT_EQ(value("object", "{broken"), R"("{broken")");
  EXPECT_EQ(value("object", "{'a': open('x')}"), R"("{'a': open('x')}")");
  EXPECT_EQ(value("shape", R"({"x": 1})"), R"({"x":1})");
  EXPECT_EQ(value("untyped", "5"), R"("5")");
  EXPECT_EQ(value("not_in_schema", "5"), R"("5")");
  EXPECT_EQ(value("grid", std::string(100'000, '[')).substr(0, 3), "\"[[");
}

TEST(ToolParser, OneNewlineOnEachSideBelongsToTheFormat) {
  expect(call("read_pdf", parameter("path", "\n  indented\n\n")),
         {"", {R"(read_pdf {"path":"\n  indented\n\n"})"}});
  expect(call("read_pdf", "<parameter=path>x</parameter>"), {"", {R"(read_pdf {"path":"x"})"}});
  expect(call("read_pdf", parameter("path", "")), {"", {R"(read_pdf {"path":""})"}});
}

TEST(ToolParser, ClosingTagsInsideOfValues) {
  expect(call("read_pdf", parameter("path", "a </parameter> b </function> c </tool_call> d <tool_call> e")),
         {"", {R"(read_pdf {"path":"a </parameter> b </function> c </tool_call> d <tool_call> e"})"}});
  expect(call("read_pdf",
              parameter("path", "<parameter=nope>5</parameter> text")),  // not a parameter of this tool
         {"", {R"(read_pdf {"path":"<parameter=nope>5</parameter> text"})"}});
}

TEST(ToolParser, MissingTags) {
  const std::vector<std::string> want = {R"(multiply {"a":5,"b":6})"};
  expect("<tool_call>\n<function=multiply>\n<parameter=a>\n5\n<parameter=b>\n6\n</function>\n</tool_call>",
         {"", want});
  expect(
      "<tool_call>\n<function=multiply>\n<parameter=a>\n5\n</parameter>\n<parameter=b>\n6\n</parameter>\n</"
      "tool_call>",
      {"", want});
  expect("<tool_call>\n<function=multiply>\n" + parameter("a", "5") + parameter("b", "6") + "</function>",
         {"", want});
  expect("<tool_call>\n<function=multiply>\n" + parameter("a", "5") + parameter("b", "6"), {"", want});
  expect("<tool_call>\n<function=multiply>\n" + parameter("a", "5") + "<parameter=b>\n6", {"", want});
  expect(
      "<tool_call>\n<function=multiply\n<parameter=a\n5\n</parameter>\n<parameter=b>\n6\n</parameter>\n</"
      "function>",
      {"", want});
  expect(
      "Now:\n<function=multiply>\n" + parameter("a", "5") + parameter("b", "6") + "</function>\n</tool_call>",
      {"Now:", want});
  expect("<tool_call>\n<function=multiply>\n" + parameter("a", "5") + parameter("b", "6") + "</function>\n" +
             call("bare", ""),
         {"", {want[0], "bare {}"}});
}

// T21: nobody must execute half a call.
TEST(ToolParser, CallCutByTheTokenLimitIsDropped) {
  const std::string whole = call("multiply", parameter("a", "5") + parameter("b", "42"));
  const size_t complete = whole.find("</function>") + std::string("</function>").size();
  for (size_t size = std::string("<tool_call>\n<function=").size(); size < complete; ++size)
    EXPECT_EQ(parse({"Hm. " + whole.substr(0, size)}, AnswerEnd::kCut), (Parsed{"Hm.", {}})) << size;
  EXPECT_EQ(parse({whole.substr(0, complete)}, AnswerEnd::kCut),
            (Parsed{"", {R"(multiply {"a":5,"b":42})"}}));
}

TEST(ToolParser, InvalidUtf8DoesNoHarm) {
  const Parsed parsed =
      parse({"<tool_call>\n<function=multiply\xF0\x9F>\n<parameter=\xF0>\n\xD1\n</parameter>\n</function>"});
  EXPECT_EQ(parsed.calls.size(), 1u);
  EXPECT_EQ(parse({call("all_types", parameter("list", "[\xF0]") + parameter("flag", "\xD1"))}).calls.size(),
            1u);
}

TEST(ToolParser, LongValueIsLinear) {  // a quadratic scan of 4 MB in pieces of 4 bytes would take minutes
  const std::string value(4 << 20, '<');
  ToolParser parser{ToolSchema(kTools)};
  const std::string text = call("read_pdf", parameter("path", value));
  std::vector<ToolEvent> events;
  for (size_t at = 0; at < text.size(); at += 4)
    for (ToolEvent& event : parser.push(std::string_view(text).substr(at, 4)))
      events.push_back(std::move(event));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<ToolCall>(events[0]).arguments.size(),
            value.size() + std::string(R"({"path":""})").size());
}

// T17, T18: both parsers in a row, as the server runs them.
TEST(ToolParser, BehindTheReasoningParser) {
  const std::string text = "I need the product.\n" + call("multiply", parameter("a", "5")) + "\n</think>\n\n";
  for (const auto& pieces : every_split(text)) {
    ReasoningParser reasoning(/*starts_in_reasoning=*/true);
    ToolParser tools{ToolSchema(kTools)};
    std::string thoughts;
    std::vector<ToolEvent> events;
    const auto add = [&](std::vector<ToolEvent> more) {
      events.insert(events.end(), more.begin(), more.end());
    };
    const auto feed = [&](const std::vector<ReasoningEvent>& parts) {
      for (const ReasoningEvent& part : parts) {
        if (part.kind == ReasoningEvent::Kind::kReasoning)
          thoughts += part.text;
        else
          add(tools.push(part.text));
      }
    };
    for (const std::string& piece : pieces) feed(reasoning.push(piece));
    feed(reasoning.finish());
    add(tools.finish(AnswerEnd::kComplete));
    ASSERT_EQ(thoughts, "I need the product.");
    ASSERT_EQ(events.size(), 1u);
    ASSERT_EQ(std::get<ToolCall>(events[0]).arguments, R"({"a":5})");
  }
}

TEST(ToolParser, CallIdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(make_call_id());
  EXPECT_EQ(ids.size(), 100u);
  EXPECT_EQ(ids.begin()->size(), 29u);
  EXPECT_TRUE(ids.begin()->starts_with("call_"));
}

}  // namespace
}  // namespace longspan::text
