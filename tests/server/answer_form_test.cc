// response_format and tool_choice on the bundled model: at temperature 1 a small model says anything, so what
// it says here is the work of the constraint.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <regex>
#include <set>

#include "server/server_fixture.h"
#include "text/grammar/json_validator.h"

namespace longspan::testing {
namespace {

Json hot(const std::string& text, const Json& more = Json::object()) {
  return with(with(user_says(text), {{"temperature", 1}, {"max_tokens", 1500}, {"seed", 7}}), more);
}

Json schema_format(const Json& schema) {
  return {{"response_format",
           {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", schema}}}}}};
}

// The content and finish_reason of a streamed answer with one choice.
struct Said {
  std::string content, reasoning, finish;
  Json calls = Json::array();
};
Said streamed(Json body) {
  body["stream"] = true;
  Said said;
  const Reply reply = post(kChat, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") break;
    const Json choice = Json::parse(event)["choices"][0];
    said.content += choice["delta"].value("content", "");
    said.reasoning += choice["delta"].value("reasoning_content", "");
    for (const Json& call : choice["delta"].value("tool_calls", Json::array()))
      said.calls.push_back(call["function"]);
    if (!choice["finish_reason"].is_null()) said.finish = choice["finish_reason"];
  }
  return said;
}
Said whole(const Json& body) {
  const Reply reply = post(kChat, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  const Json choice = reply.json()["choices"][0];
  Said said;
  if (!choice["message"]["content"].is_null()) said.content = choice["message"]["content"];
  said.reasoning = choice["message"].value("reasoning_content", "");
  for (const Json& call : choice["message"].value("tool_calls", Json::array()))
    said.calls.push_back(call["function"]);
  said.finish = choice["finish_reason"];
  return said;
}

// All of their values are short, so that every answer has the time to end.
const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"kind": {"enum": ["cat", "dog", "日本"]}, "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "maxItems": 3},
        "when": {"type": "string", "format": "date"}, "score": {"type": "number", "minimum": 0, "maximum": 1}}, "required": ["kind", "when"]})",
    R"({"anyOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                  {"type": "object", "properties": {"ab": {"type": ["null", "integer"]}}, "required": ["ab"]}]})",
    R"({"type": "array", "prefixItems": [{"type": "string", "minLength": 3, "maxLength": 5}, {"const": {"x": [1, null]}}], "minItems": 2, "items": false})",
};

TEST(AnswerForm, T37_answers_of_a_schema_are_values_of_it_whatever_the_seed) {
  for (const char* source : kSchemas) {
    const Json schema = Json::parse(source);
    const JsonValidator validator(schema);
    for (int seed = 0; seed < 12; ++seed) {
      Json body = hot("Tell me about Kyoto.", schema_format(schema));
      body["seed"] = seed;
      const Said said = seed % 2 == 0 ? whole(body) : streamed(body);
      EXPECT_EQ(said.finish, "stop");
      ASSERT_TRUE(Json::accept(said.content)) << source << "\n" << said.content;
      EXPECT_TRUE(validator.fits(Json::parse(said.content))) << source << "\n" << said.content;
    }
  }
}

TEST(AnswerForm, choices_of_one_request_each_have_their_own) {
  const Json schema = Json::parse(kSchemas[0]);
  const Json json = post(kChat, hot("Who?", with(schema_format(schema), {{"n", 4}}))).json();
  ASSERT_EQ(json["choices"].size(), 4u);
  std::set<std::string> texts;
  for (const Json& choice : json["choices"]) {
    EXPECT_TRUE(JsonValidator(schema).fits(Json::parse(choice["message"]["content"].get<std::string>())))
        << choice;
    texts.insert(choice["message"]["content"]);
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST(AnswerForm, a_stream_equals_the_whole_answer) {
  const Json body = hot("Tell me about Kyoto.", schema_format(Json::parse(kSchemas[1])));
  EXPECT_EQ(streamed(body).content, whole(body).content);
}

// Of vLLM's fields, both spellings; and a schema as a text.
TEST(AnswerForm, shapes_have_the_names_of_vllm_too) {
  const Json schema = Json::parse(kSchemas[0]);
  const Json choices = {"Kyoto", "Kyoto Station", "日本"};
  const std::vector<std::pair<Json, std::function<bool(const std::string&)>>> cases = {
      {{{"guided_json", schema}},
       [&](const std::string& text) { return JsonValidator(schema).fits(Json::parse(text)); }},
      {{{"guided_json", schema.dump()}},
       [&](const std::string& text) { return JsonValidator(schema).fits(Json::parse(text)); }},
      {{{"structured_outputs", {{"json", schema}}}},
       [&](const std::string& text) { return JsonValidator(schema).fits(Json::parse(text)); }},
      {{{"guided_regex", "[a-c]{3}-\\d{2}|ok\\$"}},
       [](const std::string& text) { return std::regex_match(text, std::regex("[a-c]{3}-\\d{2}|ok\\$")); }},
      {{{"structured_outputs", {{"regex", "^\\d{4}$"}}}},
       [](const std::string& text) { return std::regex_match(text, std::regex("\\d{4}")); }},
      {{{"guided_choice", choices}},
       [&](const std::string& text) {
         return std::find(choices.begin(), choices.end(), text) != choices.end();
       }},
      {{{"structured_outputs", {{"choice", choices}}}},
       [&](const std::string& text) {
         return std::find(choices.begin(), choices.end(), text) != choices.end();
       }},
  };
  for (const auto& [shape, fits] : cases) {
    for (int seed = 0; seed < 4; ++seed) {
      const Json body = hot("Tell me about Kyoto.", with(shape, {{"seed", seed}}));
      const Said said = whole(body);
      EXPECT_EQ(said.finish, "stop");
      EXPECT_TRUE(fits(said.content)) << shape << "\n" << said.content;
      EXPECT_EQ(streamed(body).content, said.content) << shape;
    }
  }
}

TEST(AnswerForm, text_completions_choose_too) {
  const Json body = {{"prompt", "Kyoto is"}, {"guided_choice", {"yes", "no"}}, {"max_tokens", 20}};
  const std::string text = post("/v1/completions", body).json()["choices"][0]["text"];
  EXPECT_TRUE(text == "yes" || text == "no") << text;
}

TEST(AnswerForm, json_object_is_any_object) {
  int num_complete = 0;
  for (int seed = 0; seed < 8; ++seed) {
    Json body = hot("Give me JSON.", {{"response_format", {{"type", "json_object"}}}, {"max_tokens", 400}});
    body["seed"] = seed;
    const Said said = whole(body);
    EXPECT_EQ(said.content[0], '{');
    if (said.finish != "stop") continue;
    ++num_complete;
    EXPECT_TRUE(Json::parse(said.content).is_object()) << said.content;
  }
  EXPECT_GT(num_complete, 0);
}

TEST(AnswerForm, T37_the_schema_binds_the_content_and_not_the_reasoning) {
  const Json schema = Json::parse(kSchemas[0]);
  for (int seed = 0; seed < 6; ++seed) {
    Json body = hot("What is 4 + 5?", with(schema_format(schema), {{"enable_thinking", true}}));
    body["seed"] = seed;
    body["temperature"] = seed == 0 ? 0 : 0.7;
    const Said said = seed % 2 == 0 ? whole(body) : streamed(body);
    EXPECT_NE(said.reasoning, "");
    EXPECT_EQ(said.content.find("think>"), std::string::npos);
    if (said.finish == "length") continue;  // still thinking
    EXPECT_TRUE(JsonValidator(schema).fits(Json::parse(said.content))) << said.content;
  }
}

TEST(AnswerForm, T49_logprobs_stay_finite) {
  const Json json = post(kChat, hot("Who?", with(schema_format(Json::parse(kSchemas[0])),
                                                 {{"logprobs", true}, {"top_logprobs", 20}})))
                        .json();
  const Json& content = json["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content.size(), json["usage"]["completion_tokens"]);
  for (const Json& token : content) EXPECT_TRUE(token["logprob"].is_number()) << token;
}

TEST(AnswerForm, the_form_wins_over_min_tokens_and_the_end_comes_once_it_is_complete) {
  const Said said = whole(hot("Who?", with(schema_format({{"const", "x"}}), {{"min_tokens", 50}})));
  EXPECT_EQ(said.content, "\"x\"");
  EXPECT_EQ(said.finish, "stop");
}

// No more than the schema leaves to say: what a processor rounds otherwise ends in time as well.
TEST(AnswerForm, text_completions_have_it_too) {
  const Json schema = Json::parse(
      R"({"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "capital": {"type": "boolean"}},
      "required": ["city", "capital"], "additionalProperties": false})");
  const Json body = with({{"prompt", "Kyoto is"}, {"temperature", 1}, {"seed", 3}, {"max_tokens", 300}},
                         schema_format(schema));
  const Json choice = post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(JsonValidator(schema).fits(Json::parse(choice["text"].get<std::string>()))) << choice;
}

const Json kParameters = Json::parse(
    R"({"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
    "where": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}}, "required": ["city", "where"]})");
const Json kTools = Json::array(
    {{{"type", "function"}, {"function", {{"name", "get_weather"}, {"parameters", kParameters}}}},
     {{"type", "function"}, {"function", {{"name", "stop"}, {"parameters", {{"type", "object"}}}}}}});

// T22: auto and required end with tool_calls, a named call with stop.
TEST(AnswerForm, T22_required_and_named_calls_are_made) {
  const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  for (const Json& choice : {Json("required"), named})
    for (int seed = 0; seed < 10; ++seed) {
      Json body = hot("Hello!", {{"tools", kTools}, {"tool_choice", choice}, {"parallel_tool_calls", false}});
      body["seed"] = seed;
      const Said said = seed % 2 == 0 ? whole(body) : streamed(body);
      EXPECT_EQ(said.content, "");
      ASSERT_EQ(said.calls.size(), 1u);
      EXPECT_EQ(said.finish, choice.is_string() ? "tool_calls" : "stop");
      if (choice.is_object()) {
        EXPECT_EQ(said.calls[0]["name"], "get_weather");
      }
      const Json arguments = Json::parse(said.calls[0]["arguments"].get<std::string>());
      if (said.calls[0]["name"] == "get_weather") {
        EXPECT_TRUE(JsonValidator(kParameters).fits(arguments)) << arguments;
      }
    }
}

TEST(AnswerForm, required_calls_may_be_several) {
  for (int seed = 0; seed < 4; ++seed) {
    Json body = hot("Hello!", {{"tools", kTools}, {"tool_choice", "required"}});
    body["seed"] = seed;
    const Said said = whole(body);
    if (said.finish == "length") continue;
    EXPECT_GE(said.calls.size(), 1u);
    EXPECT_EQ(said.content, "");
  }
}

// A call that nobody required: a text may come instead, but a call of a strict tool fits its schema.
TEST(AnswerForm, calls_of_strict_tools_fit_where_the_model_chooses_to_call) {
  Json tools = kTools;
  tools.erase(1);
  tools[0]["function"]["strict"] = true;
  int num_calls = 0;
  for (int seed = 0; seed < 16; ++seed) {
    Json body = hot("What is the weather in Kyoto?", {{"tools", tools}, {"seed", seed}, {"max_tokens", 300}});
    body["temperature"] = seed < 2 ? 0.0 : 0.7;
    const Said said = whole(body);
    const Said again = streamed(body);
    EXPECT_EQ(again.content, said.content);
    EXPECT_EQ(again.calls, said.calls);
    EXPECT_EQ(said.content.find("<tool_call>"), std::string::npos);
    for (const Json& call : said.calls) {
      ++num_calls;
      const Json arguments = Json::parse(call["arguments"].get<std::string>());
      EXPECT_TRUE(JsonValidator(kParameters).fits(arguments)) << arguments;
    }
  }
  EXPECT_GT(num_calls, 0);
  EXPECT_NE(whole(hot("Hello!", {{"tools", tools}, {"temperature", 0}, {"max_tokens", 30}})).content, "");
  tools[0]["function"]["parameters"]["properties"]["city"]["not"] = Json::object();
  const Reply refused = post(kChat, hot("Hi", {{"tools", tools}}));
  EXPECT_EQ(refused.status, 400) << "a strict tool is obeyed or refused";
  EXPECT_EQ(refused.json()["error"]["param"], "tools");
}

TEST(AnswerForm, a_call_comes_behind_the_reasoning) {
  const Said said =
      whole(with(hot("What is the weather in Kyoto?",
                     {{"tools", kTools}, {"tool_choice", "required"}, {"enable_thinking", true}}),
                 {{"temperature", 0}}));
  EXPECT_EQ(said.content, "");
  if (said.finish != "length") {
    EXPECT_GE(said.calls.size(), 1u);
  }
}

TEST(AnswerForm, Anthropic_any_and_tool) {
  const Json tools = Json::array({{{"name", "get_weather"}, {"input_schema", kParameters}}});
  for (const Json& choice : {Json{{"type", "any"}}, Json{{"type", "tool"}, {"name", "get_weather"}}}) {
    Json body = {{"max_tokens", 1500},
                 {"temperature", 1},
                 {"messages", {{{"role", "user"}, {"content", "Hello!"}}}},
                 {"tools", tools},
                 {"tool_choice", choice}};
    body["tool_choice"]["disable_parallel_tool_use"] = true;
    const Json json = post("/v1/messages", body).json();
    EXPECT_EQ(json["stop_reason"], "tool_use") << json;
    EXPECT_EQ(json["content"][0]["name"], "get_weather");
    EXPECT_TRUE(JsonValidator(kParameters).fits(json["content"][0]["input"])) << json;
  }
}

TEST(AnswerForm, Responses_text_format_and_tool_choice) {
  const Json schema = Json::parse(kSchemas[0]);
  const Json json =
      post("/v1/responses",
           {{"input", "Who?"},
            {"temperature", 1},
            {"max_output_tokens", 400},
            {"text", {{"format", {{"type", "json_schema"}, {"name", "answer"}, {"schema", schema}}}}}})
          .json();
  EXPECT_TRUE(
      JsonValidator(schema).fits(Json::parse(json["output"].back()["content"][0]["text"].get<std::string>())))
      << json;
  const Json call =
      post("/v1/responses",
           {{"input", "Hello!"},
            {"temperature", 1},
            {"max_output_tokens", 1500},
            {"tools", {{{"type", "function"}, {"name", "get_weather"}, {"parameters", kParameters}}}},
            {"tool_choice", {{"type", "function"}, {"name", "get_weather"}}}})
          .json();
  EXPECT_EQ(call["output"].back()["type"], "function_call") << call;
}

TEST(AnswerForm, what_cannot_be_is_refused_with_the_name_of_its_field) {
  const auto refusal = [](const Json& more) {
    const Reply reply = post(kChat, with(user_says("Hi"), more));
    EXPECT_EQ(reply.status, 400) << more << reply.body;
    return reply.json()["error"];
  };
  for (const bool stream : {false, true}) {
    const Json error =
        refusal(with(schema_format({{"type", "array"}, {"uniqueItems", true}}), {{"stream", stream}}));
    EXPECT_EQ(error["param"], "response_format");
    EXPECT_NE(error["message"].get<std::string>().find("uniqueItems"), std::string::npos);
  }
  EXPECT_EQ(refusal({{"response_format", {{"type", "json_schema"}}}})["param"],
            "response_format.json_schema");
  EXPECT_EQ(
      refusal({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}}}}}})["param"],
      "response_format.json_schema.schema");
  EXPECT_EQ(refusal({{"response_format", {{"type", "regex"}}}})["param"], "response_format");
  EXPECT_EQ(refusal({{"response_format", {{"schema", {{"type", "object"}}}}}})["param"],
            "response_format.type");
  EXPECT_EQ(refusal({{"structured_outputs", {{"schema", {{"type", "object"}}}}}})["param"],
            "structured_outputs");
  EXPECT_EQ(refusal(schema_format({{"enum", Json::array()}}))["param"], "response_format");
  EXPECT_EQ(refusal({{"tool_choice", "required"}})["param"], "tool_choice");
  EXPECT_EQ(refusal({{"tools", kTools}, {"tool_choice", "always"}})["param"], "tool_choice");
  EXPECT_EQ(refusal({{"tools", kTools},
                     {"tool_choice", {{"type", "function"}, {"function", {{"name", "other"}}}}}})["param"],
            "tool_choice");
  EXPECT_EQ(refusal({{"guided_json", "{"}})["param"], "guided_json");
  EXPECT_EQ(refusal({{"guided_json", {{"not", Json::object()}}}})["param"], "guided_json");
  EXPECT_EQ(refusal({{"guided_regex", "(?<=x)a"}})["param"], "guided_regex");
  EXPECT_EQ(refusal({{"guided_choice", Json::array()}})["param"], "guided_choice");
  EXPECT_EQ(refusal({{"guided_choice", {1}}})["param"], "guided_choice");
  EXPECT_EQ(refusal({{"guided_grammar", "root ::= \"a\""}})["param"], "guided_grammar");
  EXPECT_EQ(refusal({{"structured_outputs", {{"grammar", "x"}}}})["param"], "structured_outputs.grammar");
  EXPECT_EQ(refusal({{"structured_outputs", {{"json", 5}}}})["param"], "structured_outputs.json");
  EXPECT_EQ(refusal({{"guided_regex", "a"}, {"guided_choice", {"a"}}})["param"], "guided_choice");
  EXPECT_EQ(refusal(with(schema_format({{"type", "null"}}), {{"guided_regex", "a"}}))["param"],
            "guided_regex");
}

}  // namespace
}  // namespace longspan::testing
