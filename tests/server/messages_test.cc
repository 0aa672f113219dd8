// The role matrix of real clients, request bodies, and routes: pure functions.
#include <gtest/gtest.h>

#include "server/api_key.h"
#include "server/chat_messages.h"
#include "server/http_router.h"
#include "server/json_fields.h"

namespace longspan::server {
namespace {

// The error's message; "" when nothing was thrown.
template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const WireError& error) {
    EXPECT_GE(error.status, 400);
    EXPECT_LT(error.status, 500);
    return error.message;
  }
  return "";
}

Json messages(const char* text) { return normalize_messages(Json::parse(text)); }

TEST(Messages, T29_system_and_developer_messages_become_one_in_front) {
  EXPECT_EQ(
      messages(
          R"([{"role":"user","content":"a"},{"role":"system","content":"S"},{"role":"user","content":"b"},
                         {"role":"developer","content":"D"}])"),
      Json::parse(R"([{"role":"system","content":"S\n\nD"},{"role":"user","content":"a"},
                            {"role":"user","content":"b"}])"));
}

TEST(Messages, contents_are_strings_null_or_text_parts) {
  EXPECT_EQ(
      messages(
          R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"},"c"]},
                         {"role":"assistant","content":null},{"role":"user"}])"),
      Json::parse(R"([{"role":"user","content":"abc"},{"role":"assistant","content":""},
                            {"role":"user","content":""}])"));
  EXPECT_EQ(error_of([] { messages(R"([{"role":"user","content":[{"type":"image_url"}]}])"); }),
            "messages[0].content[0].type: got 'image_url', this model reads text only");
  EXPECT_EQ(error_of([] { messages(R"([{"role":"user","content":7}])"); }),
            "messages[0].content: got 7, need a string, null or a list of parts");
}

TEST(Messages, T24_calls_keep_their_arguments_as_they_came) {
  EXPECT_EQ(messages(R"([{"role":"assistant","content":null,"refusal":null,"audio":null,"tool_calls":[
                          {"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},
                          {"id":"2","function":{"name":"g"}}]},
                         {"role":"tool","tool_call_id":"1","content":"r"}])"),
            Json::parse(R"([{"role":"assistant","content":"","tool_calls":[
                              {"type":"function","function":{"name":"f","arguments":"{\"a\": 1}"},"id":"1"},
                              {"type":"function","function":{"name":"g","arguments":{}},"id":"2"}]},
                            {"role":"tool","content":"r","tool_call_id":"1"}])"));
}

TEST(Messages, what_is_no_message_is_named) {
  EXPECT_EQ(error_of([] { messages("[]"); }), "messages: is empty: need at least one message");
  EXPECT_EQ(error_of([] { messages("[1]"); }), "messages[0]: got 1, need an object");
  EXPECT_EQ(error_of([] { messages(R"([{"role":"robot","content":""}])"); }),
            "messages[0].role: got 'robot', need system, developer, user, assistant or tool");
}

TEST(Messages, T27_empty_tools_are_no_tools) {
  const Json empty = Json::array();
  EXPECT_TRUE(normalize_tools(nullptr).is_null());
  EXPECT_TRUE(normalize_tools(&empty).is_null());
  const Json bare = Json::parse(R"([{"type":"function","name":"f","parameters":{}}])");
  EXPECT_EQ(normalize_tools(&bare),
            Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{}}}])"));
}

TEST(JsonBody, depth_members_and_bytes_are_checked) {
  EXPECT_EQ(parse_json_object(R"({"a": [1]})"), Json::parse(R"({"a": [1]})"));
  EXPECT_EQ(parse_json_object("\xEF\xBB\xBF{}"), Json::object());  // a byte order mark
  EXPECT_EQ(error_of([] { parse_json_object("[1]"); }), "the body: got an array, need a JSON object");
  EXPECT_EQ(error_of([] { parse_json_object(""); }), "the body is empty: need a JSON object");
  EXPECT_NE(error_of([] { parse_json_object("{\"a\": \"\xff\"}"); }), "");
  EXPECT_NE(error_of([] { parse_json_object(R"({"a": "\ud83d"})"); }), "");  // T33: a lone surrogate
  EXPECT_EQ(parse_json_object(R"({"a": "\ud83d\ude00"})")["a"], "\xF0\x9F\x98\x80");
  EXPECT_EQ(error_of([] { parse_json_object("{\"a\":" + std::string(100'000, '[')); }),
            "the JSON body is nested more than 128 deep");
  EXPECT_EQ(parse_json_object("{\"a\": \"" + std::string(1000, '[') + "\"}").size(), 1u);
}

TEST(JsonFields, null_is_absent_and_whole_floats_are_integers) {
  const Json json = Json::parse(R"({"a": null, "b": 64.0, "c": 1.5, "d": "16", "e": 1e30, "f": true})");
  const JsonFields fields(json);
  EXPECT_EQ(fields.integer("a", 0, 9), std::nullopt);
  EXPECT_EQ(fields.integer("b", 0, 99), 64);
  EXPECT_EQ(error_of([&] { fields.integer("b", 0, 9); }), "b: got 64.0, need a whole number from 0 to 9");
  EXPECT_EQ(error_of([&] { fields.integer("c", 0, 9); }), "c: got 1.5, need a whole number from 0 to 9");
  EXPECT_EQ(error_of([&] { fields.integer("d", 0, 99); }), "d: got \"16\", need a whole number from 0 to 99");
  EXPECT_NE(error_of([&] { fields.integer("e", 0, INT64_MAX); }), "");
  EXPECT_EQ(error_of([&] { fields.number("f", 0, 2); }), "f: got true, need a number from 0 to 2");
}

TEST(Router, patterns_methods_and_slashes) {
  const std::vector<Route> routes = {
      {"GET", "/v1/models"}, {"GET", "/v1/models/{}"}, {"POST", "/r/{}/cancel"}};
  EXPECT_EQ(find_route(routes, "GET", "/v1/models/").route, &routes[0]);
  EXPECT_EQ(find_route(routes, "HEAD", "/v1/models").route, &routes[0]);
  EXPECT_EQ(find_route(routes, "GET", "/v1/models/org%2Fname/x").parts,
            std::vector<std::string>{"org/name/x"});
  EXPECT_EQ(find_route(routes, "POST", "/r/7/cancel").parts, std::vector<std::string>{"7"});
  EXPECT_EQ(find_route(routes, "POST", "/r//cancel").route, nullptr);
  EXPECT_EQ(find_route(routes, "PUT", "/v1/models").allowed_methods, "GET");
  EXPECT_EQ(find_route(routes, "GET", "/nowhere").allowed_methods, "");
}

TEST(ApiKey, every_usual_header_form) {
  const ApiKey key("secret");
  const auto asks = [&](const char* name, const char* value) {
    HttpRequest request;
    if (name) request.headers = {{name, value}};
    return error_of([&] { key.check(request); });
  };
  EXPECT_EQ(asks("authorization", "Bearer secret"), "");
  EXPECT_EQ(asks("authorization", "bearer   secret "), "");
  EXPECT_EQ(asks("x-api-key", "secret"), "");
  EXPECT_EQ(asks("api-key", "secret"), "");
  EXPECT_EQ(asks("authorization", "Bearer secre"), "the API key is not valid");
  EXPECT_EQ(asks("authorization", "Bearer secret2"), "the API key is not valid");
  EXPECT_EQ(asks("authorization", "secret"), "the Authorization header is not of the form 'Bearer KEY'");
  EXPECT_NE(asks(nullptr, nullptr), "");
  EXPECT_EQ(error_of([] { ApiKey("").check(HttpRequest()); }), "");
}

}  // namespace
}  // namespace longspan::server
