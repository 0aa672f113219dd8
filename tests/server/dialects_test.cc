// Anthropic's messages and OpenAI's responses: what their requests become, and what their streams say.
#include <gtest/gtest.h>

#include "server/anthropic_messages.h"
#include "server/openai_responses.h"
#include "server/server_fixture.h"

namespace longspan::testing {
namespace {

// Events by name, in order.
std::vector<std::pair<std::string, Json>> named_events(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  std::vector<std::pair<std::string, Json>> out;
  for (const std::string& event : reply.events()) {
    const Json json = Json::parse(event);
    EXPECT_NE(reply.body.find("event: " + json["type"].get<std::string>() + "\ndata: "), std::string::npos);
    out.emplace_back(json["type"], json);
  }
  return out;
}

std::vector<std::string> names_without(const std::vector<std::pair<std::string, Json>>& events,
                                       const std::string& repeated) {
  std::vector<std::string> names;
  for (const auto& [name, json] : events)
    if (name != repeated || names.back() != repeated) names.push_back(name);
  return names;
}

const Json kCity =
    Json::parse(R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})");

TEST(Anthropic, a_request_becomes_a_chat_request) {
  const Json body = Json::parse(R"({"model":"m","max_tokens":9,"stop_sequences":["x"],
    "system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"S"}],
    "messages":[
      {"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"T","signature":""},{"type":"text","text":"a"},
                                     {"type":"tool_use","id":"1","name":"f","input":{"k":1}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"r"}]},
                                {"type":"text","text":"and?"}]}],
    "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
    "tool_choice":{"type":"auto","disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":1}})");
  EXPECT_EQ(server::to_chat_body(body), Json::parse(R"({"messages":[
      {"role":"system","content":"S"},
      {"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"text","text":"a"}],"reasoning_content":"T",
       "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"k":1}}}]},
      {"role":"tool","tool_call_id":"1","content":"r"},
      {"role":"user","content":[{"type":"text","text":"and?"}]}],
    "model":"m","max_tokens":9,"stop":["x"],
    "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],
    "tool_choice":"auto","parallel_tool_calls":false,"enable_thinking":true})"));
}

// T66: a number that changes at every call must not reach the prompt.
TEST(Anthropic, T66_the_billing_header_is_left_out) {
  const auto prompt = [](const char* number) {
    Json body = Json::parse(R"({"messages":[{"role":"user","content":"q"}]})");
    body["system"] = {{{"type", "text"}, {"text", std::string("x-anthropic-billing-header: cch=") + number}},
                      {{"type", "text"}, {"text", "S"}}};
    return server::to_chat_body(body);
  };
  EXPECT_EQ(prompt("1"), prompt("2"));
}

TEST(Anthropic, a_stream_opens_and_closes_its_blocks) {
  const Json body = {{"model", "tiny"},
                     {"max_tokens", 64},
                     {"temperature", 0},
                     {"messages", {{{"role", "user"}, {"content", "What is 4 + 5?"}}}},
                     {"thinking", {{"type", "enabled"}}}};
  const Json whole = post("/v1/messages", body).json();
  EXPECT_EQ(whole["content"][0]["type"], "thinking");
  EXPECT_EQ(whole["content"][1]["type"], "text");
  EXPECT_EQ(whole["stop_reason"], "end_turn");
  Json streaming = body;
  streaming["stream"] = true;
  const auto events = named_events(post("/v1/messages", streaming));
  EXPECT_EQ(names_without(events, "content_block_delta"),
            (std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                      "content_block_stop", "content_block_start", "content_block_delta",
                                      "content_block_stop", "message_delta", "message_stop"}));
  std::string thinking, text;
  for (const auto& [name, json] : events) {
    if (name != "content_block_delta") continue;
    thinking += json["delta"].value("thinking", "");
    text += json["delta"].value("text", "");
  }
  EXPECT_EQ(thinking, whole["content"][0]["thinking"]);
  EXPECT_EQ(text, whole["content"][1]["text"]);
  EXPECT_EQ(events[events.size() - 2].second["usage"], whole["usage"]);
  EXPECT_EQ(post("/v1/messages/count_tokens", body).json()["input_tokens"], whole["usage"]["input_tokens"]);
}

TEST(Anthropic, a_call_is_a_block_with_all_of_its_input) {
  Json body = {{"max_tokens", 64},
               {"temperature", 0},
               {"messages", {{{"role", "user"}, {"content", "What is the weather in Kyoto?"}}}},
               {"tools", {{{"name", "get_weather"}, {"description", "Get the weather of a city."}}}}};
  body["tools"][0]["input_schema"] = kCity;
  const Json whole = post("/v1/messages", body).json();
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["content"][0]["input"], Json({{"city", "Kyoto"}}));
  body["stream"] = true;
  for (const auto& [name, json] : named_events(post("/v1/messages", body)))
    if (name == "content_block_delta") {
      EXPECT_EQ(Json::parse(json["delta"]["partial_json"].get<std::string>()), Json({{"city", "Kyoto"}}));
    }
}

TEST(Anthropic, an_answer_has_the_form_of_its_output_config) {
  const Json format = Json::parse(
      R"({"type":"json_schema","schema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}})");
  Json body = {{"messages", {{{"role", "user"}, {"content", "Hello!"}}}},
               {"max_tokens", 60},
               {"output_config", {{"effort", "low"}, {"format", format}}}};
  const Json reply = post("/v1/messages", body).json();
  EXPECT_EQ(reply["stop_reason"], "end_turn");
  EXPECT_TRUE(Json::parse(reply["content"][0]["text"].get<std::string>())["n"].is_number_integer()) << reply;
  body["output_config"]["format"].erase("type");
  EXPECT_EQ(post("/v1/messages", body).status, 400);
}

TEST(Anthropic, errors_have_its_form) {
  EXPECT_EQ(post("/v1/messages", {{"messages", {{{"role", "user"}, {"content", "q"}}}},
                                  {"max_tokens", 2},
                                  {"thinking", {{"type", "sometimes"}}}})
                .status,
            400);
  const Reply reply = post("/v1/messages", {{"messages", {{{"role", "user"}, {"content", "q"}}}}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json(), Json::parse(R"({"type":"error","error":{"type":"invalid_request_error",
                                         "message":"max_tokens: is missing: need a number of tokens"}})"));
}

TEST(Responses, a_request_becomes_a_chat_request) {
  const Json body =
      Json::parse(R"({"model":"m","instructions":"S","max_output_tokens":9,"reasoning":{"effort":"none"},
    "input":[{"role":"user","content":[{"type":"input_text","text":"q"}]},
             {"type":"reasoning","summary":null},{"type":"reasoning","summary":[],"content":[]},
             {"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
             {"type":"function_call_output","call_id":"1","output":"r"}],
    "tools":[{"type":"function","name":"f","strict":true,"parameters":{}}]})");
  EXPECT_EQ(server::to_chat_body_from_responses(body), Json::parse(R"({"messages":[
      {"role":"system","content":"S"},
      {"role":"user","content":[{"type":"input_text","text":"q"}]},
      {"role":"assistant","content":null,
       "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"1","content":"r"}],
    "model":"m","max_tokens":9,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],
    "reasoning_effort":"none"})"));
}

TEST(Responses, a_stream_ends_with_the_whole_response) {
  Json body = {{"input", "What is 4 + 5?"}, {"temperature", 0}, {"reasoning", {{"effort", "low"}}}};
  const Json whole = post("/v1/responses", body).json();
  EXPECT_EQ(whole["status"], "completed");
  ASSERT_EQ(whole["output"].size(), 2u) << whole;
  EXPECT_EQ(whole["output"][0]["type"], "reasoning");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "9");
  body["stream"] = true;
  const auto events = named_events(post("/v1/responses", body));
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].second["sequence_number"], i);
  EXPECT_EQ(events.front().first, "response.created");
  EXPECT_EQ(events.back().first, "response.completed");
  const Json& last = events.back().second["response"];
  EXPECT_EQ(last["output"][1]["content"], whole["output"][1]["content"]);
  EXPECT_EQ(last["usage"], whole["usage"]);
}

TEST(Responses, what_needs_a_memory_is_refused) {
  const Reply reply = post("/v1/responses", {{"input", "q"}, {"previous_response_id", "resp_1"}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "previous_response_id");
}

}  // namespace
}  // namespace longspan::testing
