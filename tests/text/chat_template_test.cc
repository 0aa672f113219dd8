#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"

namespace longspan::text {
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kFixtures = LONGSPAN_SOURCE_DIR "/tests/fixtures";

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

ChatTemplate from_file(const std::string& name, ChatTemplate::SpecialTokens tokens = {}) {
  return ChatTemplate({{"default", read(kFixtures / "templates" / name)}}, std::move(tokens));
}

ChatTemplate named(std::vector<NamedTemplate> sources) { return ChatTemplate(sources); }

std::string rejection(const ChatTemplate& chat, const Json& request) {
  try {
    return "rendered: " + chat.render(request);
  } catch (const jinja::RaisedException& raised) {
    return raised.what();
  }
}

std::string error_of(const ChatTemplate& chat, const Json& request) {
  try {
    return "rendered: " + chat.render(request);
  } catch (const Error& error) {
    return error.what();
  }
}

Json user(const std::string& content) { return {{"role", "user"}, {"content", content}}; }
Json assistant(const std::string& content) { return {{"role", "assistant"}, {"content", content}}; }
Json system(const std::string& content) { return {{"role", "system"}, {"content", content}}; }

TEST(ChatTemplate, TinyModelCases) {
  const ChatTemplate chat = ChatTemplate::load(LONGSPAN_SOURCE_DIR "/models/longspan-tiny");
  const Json cases = Json::parse(read(kFixtures / "tiny/chat_template_cases.json"));
  ASSERT_EQ(cases.size(), 11u);
  for (const Json& one : cases) {
    if (one.contains("rendered")) {
      EXPECT_EQ(chat.render(one["input"]), one["rendered"].get<std::string>());
    } else {
      EXPECT_EQ(rejection(chat, one["input"]), one["error"].get<std::string>());
    }
  }
}

// ---- The rules of Qwen3.5 / 3.6 ----

TEST(QwenRules, ContentIsTrimmedAndThinkingOpens) {
  EXPECT_EQ(
      from_file("qwen36_rules.jinja").render({{"messages", {user("Hi ")}}, {"add_generation_prompt", true}}),
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

TEST(QwenRules, ThinkingOffClosesAtOnce) {
  const Json request = {
      {"messages", {system(" S "), user("Hi")}}, {"add_generation_prompt", true}, {"enable_thinking", false}};
  EXPECT_EQ(from_file("qwen36_rules.jinja").render(request),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST(QwenRules, ReasoningOfOldTurnsIsDroppedUnlessPreserved) {
  Json request = {{"messages", {user("a"), assistant("<think>\nR\n</think>\n\nB"), user("c")}},
                  {"add_generation_prompt", true}};
  const std::string head = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
  const std::string tail = "B<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n";
  const ChatTemplate chat = from_file("qwen36_rules.jinja");
  EXPECT_EQ(chat.render(request), head + tail);
  request["preserve_thinking"] = true;
  EXPECT_EQ(chat.render(request), head + "<think>\nR\n</think>\n\n" + tail);
  EXPECT_EQ(from_file("qwen35_rules.jinja").render(request), head + tail);  // 3.5 does not know the switch
}

Json agent_turn(const Json& arguments) {
  return {{"messages",
           {user("a"),
            {{"role", "assistant"},
             {"content", nullptr},
             {"reasoning_content", "R"},
             {"tool_calls",
              {{{"id", "x"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}},
               {{"function", {{"name", "g"}, {"arguments", Json::object()}}}}}}},
            {{"role", "tool"}, {"content", "r1"}},
            {{"role", "tool"}, {"content", "r2"}}}},
          {"add_generation_prompt", true}};
}

std::string agent_prompt(const std::string& parameters) {
  return "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\nR\n</"
         "think>\n\n<tool_call>\n<function=f>\n" +
         parameters +
         "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n"
         "<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</"
         "tool_response><|im_end|>\n"
         "<|im_start|>assistant\n<think>\n";
}

const Json kArguments = Json::parse(
    R"({"x": 1, "s": "q", "b": true, "n": null, "f": 1.0, "big": 1e22, "o": {"k": [1, 2, "<é>"]}})");

TEST(QwenRules, CallsAndResults) {
  const auto parameter = [](const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
  };
  const std::string head = parameter("x", "1") + parameter("s", "q");
  const std::string object = parameter("o", R"({"k": [1, 2, "<é>"]})");
  EXPECT_EQ(from_file("qwen36_rules.jinja").render(agent_turn(kArguments)),
            agent_prompt(head + parameter("b", "true") + parameter("n", "null") + parameter("f", "1.0") +
                         parameter("big", "1e+22") + object));
  EXPECT_EQ(from_file("qwen35_rules.jinja").render(agent_turn(kArguments)),
            agent_prompt(head + parameter("b", "True") + parameter("n", "None") + parameter("f", "1.0") +
                         parameter("big", "1e+22") + object));
}

TEST(QwenRules, RejectionsAreTheTemplatesOwnWords) {
  const ChatTemplate chat = from_file("qwen36_rules.jinja");
  EXPECT_EQ(rejection(chat, {{"messages", Json::array()}}), "No messages provided.");
  EXPECT_EQ(rejection(chat, {{"messages", {system("x")}}}), "No user query found in messages.");
  EXPECT_EQ(rejection(chat, {{"messages", {user("x"), system("y")}}}),
            "System message must be at the beginning.");
  EXPECT_EQ(rejection(chat, {{"messages", {user("x"), {{"role", "developer"}, {"content", "y"}}}}}),
            "Unexpected message role.");
  const Json tool_text = user("<tool_response>\nr\n</tool_response>");
  EXPECT_EQ(rejection(chat, {{"messages", {tool_text}}}), "No user query found in messages.");
}

TEST(QwenRules, ToolsComeBeforeTheSystemText) {
  const Json tool =
      Json::parse(R"({"type": "function", "function": {"name": "f", "description": "a < b & 'c'"}})");
  const Json request = {{"messages", {system("S"), user("u")}}, {"tools", {tool}}};
  const std::string prompt = from_file("qwen36_rules.jinja").render(request);
  EXPECT_NE(
      prompt.find(
          "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"a < b & "
          "'c'\"}}\n</tools>"),
      std::string::npos);
  EXPECT_NE(prompt.find("\n\nS<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"), std::string::npos);
}

// Four templates in the manner of known model families, with what jinja2 3.1.6 renders for each.
TEST(ChatTemplate, FamiliesRenderAsInJinja2) {
  jinja::RenderOptions options;
  options.now = [] { return std::tm{.tm_hour = 13, .tm_mday = 26, .tm_mon = 6, .tm_year = 2024 - 1900}; };
  const Json cases = Json::parse(read(kFixtures / "templates/rendered.json"));
  ASSERT_GT(cases.size(), 30u);
  for (const Json& one : cases) {
    const std::string name = one["template"].get<std::string>() + ".jinja";
    const ChatTemplate chat = from_file(name, {.bos_token = "<|begin|>", .eos_token = std::nullopt});
    if (one.contains("rendered")) {
      EXPECT_EQ(chat.render(one["request"], options), one["rendered"].get<std::string>()) << one["request"];
    } else {
      EXPECT_EQ(rejection(chat, one["request"]), one["raised"].get<std::string>()) << one["request"];
    }
  }
}

// ---- The request ----

TEST(ChatRequest, ArgumentsAsTextEqualArgumentsAsObject) {
  const ChatTemplate chat = from_file("qwen36_rules.jinja");
  EXPECT_EQ(chat.render(agent_turn(kArguments.dump())), chat.render(agent_turn(kArguments)));
  for (const Json& empty : {Json(""), Json("{}"), Json(" {} "), Json(nullptr)})
    EXPECT_EQ(chat.render(agent_turn(empty)), agent_prompt("")) << empty;
}

TEST(ChatRequest, MalformedArgumentsNameTheirPlace) {
  EXPECT_EQ(error_of(from_file("qwen36_rules.jinja"), agent_turn("{\"x\": ")),
            "messages[1].tool_calls[0].function.arguments is not JSON: got '{\"x\": '");
}

TEST(ChatRequest, NullMembersAndEmptyToolsAreAbsent) {
  const ChatTemplate chat =
      named({{"default", "{{ tools is none }} {{ x is defined }} {{ add_generation_prompt }}"}});
  EXPECT_EQ(chat.render({{"messages", Json::array()}, {"tools", Json::array()}, {"x", nullptr}}),
            "True False False");
  EXPECT_EQ(chat.render({{"messages", Json::array()}, {"tools", nullptr}, {"x", 1}}), "True True False");
}

TEST(ChatRequest, WrongTypesAreErrors) {
  const ChatTemplate chat = named({{"default", "x"}});
  EXPECT_EQ(error_of(chat, Json::object()), "messages must be an array");
  EXPECT_EQ(error_of(chat, {{"messages", {"a"}}}), "messages[0] must be an object, got string");
  EXPECT_EQ(error_of(chat, {{"messages", {{{"tool_calls", 1}}}}}), "messages[0].tool_calls must be an array");
  EXPECT_EQ(error_of(chat, {{"messages", {user("a")}}, {"add_generation_prompt", "yes"}}),
            "add_generation_prompt must be true or false, got \"yes\"");
}

TEST(ChatRequest, ContinuesTheLastMessage) {
  const ChatTemplate chat = from_file("qwen36_rules.jinja");
  Json request = {{"messages", {user("q"), assistant("e ")}}, {"continue_final_message", true}};
  const std::string head = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n";
  EXPECT_EQ(chat.render(request), head + "\n</think>\n\ne ");
  request["messages"][1]["content"] = Json::parse(R"([{"type": "text", "text": "It is"}])");
  EXPECT_EQ(chat.render(request), head + "\n</think>\n\nIt is");
  request["messages"][1]["content"] = "";  // nothing to continue: a fresh answer
  EXPECT_EQ(chat.render(request), head);
}

TEST(ChatRequest, UserTextIsNeverTemplateCode) {
  EXPECT_EQ(from_file("qwen36_rules.jinja").render({{"messages", {user("{{ 1 + 1 }}{% raw %}")}}}),
            "<|im_start|>user\n{{ 1 + 1 }}{% raw %}<|im_end|>\n");
}

TEST(ChatRequest, ToolUseTemplateIsTakenWithTools) {
  const ChatTemplate chat = named({{"default", "plain"}, {"tool_use", "tools {{ tools|length }}"}});
  EXPECT_EQ(chat.render({{"messages", {user("a")}}}), "plain");
  EXPECT_EQ(chat.render({{"messages", {user("a")}}, {"tools", {{{"name", "f"}}}}}), "tools 1");
}

TEST(ChatRequest, ErrorsNameTheTemplate) {
  const ChatTemplate chat = named({{"default", "\n{{ messages|frob }}"}});
  EXPECT_EQ(error_of(chat, {{"messages", {user("a")}}}), "chat template line 2: unknown filter 'frob'");
  EXPECT_THROW(named({{"tool_use", "{% if %}"}}), Error);
  EXPECT_THROW(named({}), Error);
}

// ---- Where templates come from ----

class ModelDir : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("longspan_chat_template_" +
            std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void write(const char* name, const std::string& text) { std::ofstream(dir_ / name) << text; }
  std::string render() { return ChatTemplate::load(dir_).render({{"messages", {user("a")}}}); }

  std::filesystem::path dir_;
};

TEST_F(ModelDir, FileComesBeforeConfig) {
  EXPECT_THROW(render(), Error);
  write("tokenizer_config.json", R"({"chat_template": "from config {{ bos_token }}", "bos_token": "<s>"})");
  EXPECT_EQ(render(), "from config <s>");
  write("chat_template.jinja", "from file {{ bos_token }}\n");
  EXPECT_EQ(render(), "from file <s>");
}

TEST_F(ModelDir, ListOfNamedTemplates) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(render(), "D");
}

}  // namespace
}  // namespace longspan::text
