// HTTP itself, keys, limits, disconnects and shutting down, against a real server.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "server/server_fixture.h"

namespace longspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

int port() { return Running::shared().port(); }

// An answer that runs until somebody ends it.
Json endless(const Json& more = Json::object()) {
  Json body = user_says("Hello!");
  body.update({{"max_tokens", kContext}, {"ignore_eos", true}});
  body.update(more);
  return body;
}

std::string raw(const Json& body) {
  const std::string text = body.dump();
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\n\r\n" + text;
}

bool runs(int count) {
  for (int i = 0; i < 500; ++i) {
    if (Running::shared().engine().status().schedule.num_running >= count) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

Json status() { return Client(port()).request("GET", "/v1/longspan/status").json(); }

TEST(Http, a_connection_serves_many_requests) {
  Client client(port());
  EXPECT_EQ(client.request("GET", "/health").json(), Json({{"status", "ok"}}));
  EXPECT_EQ(client.request("GET", "/ready").status, 200);
  EXPECT_EQ(client.request("GET", "/v1/models/").json()["data"][1]["id"], "other-name");
  EXPECT_EQ(client.request("GET", "/v1/models/tiny?x=1").json()["max_model_len"], kContext);
  EXPECT_EQ(client.post(kChat, user_says("Hi")).status, 200);
  EXPECT_EQ(client.request("GET", "/health").headers["connection"], "keep-alive");
}

TEST(Http, errors_are_json_and_carry_the_request_id) {
  Client client(port());
  const Reply lost = client.request("GET", "/nowhere", "", "X-Request-Id: abc-1\r\n");
  EXPECT_EQ(lost.status, 404);
  EXPECT_EQ(lost.json()["error"]["code"], "route_not_found");
  EXPECT_EQ(lost.headers.at("x-request-id"), "abc-1");
  const Reply method = client.request("GET", kChat);
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  EXPECT_NE(client.request("GET", "/health", "", "X-Request-Id: a b\r\n").headers.at("x-request-id"), "a b");
  EXPECT_EQ(client.request("GET", "/v1/models/nobody").json()["error"]["code"], "model_not_found");
  EXPECT_EQ(client.request("POST", kChat, "{}", "Content-Type: multipart/form-data\r\n").status, 415);
  EXPECT_EQ(client.request("POST", kChat, "{}", "Content-Encoding: gzip\r\n").status, 415);
  EXPECT_EQ(client.request("POST", kChat, "{").status, 400);
  // Media types have no case: this is the body's fault, not the header's.
  EXPECT_EQ(client.request("POST", kChat, "{", "Content-Type: Application/JSON ; charset=utf-8\r\n").status,
            400);
}

TEST(Http, a_target_may_name_the_host) {
  Client client(port());
  EXPECT_EQ(client.request("GET", "http://test:80/v1/models/tiny?x=1").json()["id"], "tiny");
  EXPECT_EQ(client.request("GET", "/nowhere/http://test/health").status, 404);
}

TEST(Http, HEAD_says_how_long_the_answer_of_GET_is) {
  Client client(port());
  const std::string health = client.request("GET", "/health").body;
  client.send("HEAD /health HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_EQ(client.read_head().headers["content-length"], std::to_string(health.size()));
  EXPECT_EQ(client.request("GET", "/health").body, health);  // no body came before
}

TEST(Http, malformed_requests_are_400_and_harm_nobody) {
  for (const char* bytes : {
           "GET /health HTTP/1.1\nHost: x\n\n",                                            // bare line feeds
           "POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",  // two lengths
           "POST /tokenize HTTP/1.1\r\nContent-Length: -2\r\n\r\n{}",                      //
           "POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: "
           "chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
           "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",  // T47
           "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n{}",  // an end that nobody knows
           "\x16\x03\x01\x02",                                              // TLS
           "GARBAGE\r\n\r\n",
       }) {
    Client client(port());
    client.send(bytes);
    EXPECT_EQ(client.read_reply().status, 400) << bytes;
  }
  EXPECT_EQ(Client(port()).request("GET", "/health").status, 200);
}

TEST(Http, T47_bodies_in_chunks_and_after_100_continue) {
  Client client(port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\nc\r\nmpt\": "
      "\"abc\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  const std::string body = R"({"prompt": "abc"})";
  client.send("POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  ASSERT_TRUE(client.read_until("HTTP/1.1 100 Continue\r\n\r\n"));
  client.send(body);
  EXPECT_EQ(client.read_reply().status, 100);
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Http, T47_large_bodies_are_taken_and_larger_ones_are_413) {
  server::ServerOptions options;
  options.http.max_body_bytes = 4 << 20;
  const auto server = Running::shared().serve(options);
  const auto tokenize = [&](size_t size) {
    return Client(server->port()).post("/tokenize", {{"prompt", std::string(size, ' ')}}).status;
  };
  EXPECT_EQ(tokenize(1 << 20), 200);
  EXPECT_EQ(tokenize(8 << 20), 413);
}

// T45: time is linear and nothing recurses.
TEST(Http, T45_one_megabyte_of_one_character) {
  for (const char* piece : {"a", " ", "7", "鬱"}) {
    std::string text;
    while (text.size() < 1 << 20) text += piece;
    const Reply reply = Client(port()).post("/tokenize", {{"prompt", text}});
    EXPECT_EQ(reply.status, 200);
    EXPECT_GT(reply.json()["count"].get<int>(), 0);
  }
}

TEST(Http, too_many_connections_are_503) {
  server::ServerOptions options;
  options.http.max_connections = 1;
  const auto server = Running::shared().serve(options);
  Client first(server->port());
  EXPECT_EQ(first.request("GET", "/health").status, 200);
  EXPECT_EQ(Client(server->port()).read_reply().status, 503);
}

TEST(Http, bodies_under_way_have_a_limit_together) {
  server::ServerOptions options;
  options.http.max_total_body_bytes = 1000;
  const auto server = Running::shared().serve(options);
  Client slow(server->port());
  slow.send("POST /tokenize HTTP/1.1\r\nContent-Length: 900\r\n\r\n{");
  Reply second;
  for (int i = 0; i < 200 && second.status != 503; ++i)
    second = Client(server->port()).post("/tokenize", {{"prompt", std::string(200, 'a')}});
  EXPECT_EQ(second.status, 503);
  EXPECT_EQ(second.headers["retry-after"], "2");
}

TEST(Http, the_page_needs_no_key_and_loads_nothing_from_elsewhere) {
  server::ServerOptions options;
  options.api_key = "secret";
  const auto server = Running::shared().serve(options);
  Client client(server->port());
  const Reply page = client.request("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'; script-src 'self'"),
            std::string::npos);
  EXPECT_EQ(page.body.find("http"), std::string::npos) << "an address of another place";
  for (const char* name : {"page.js", "page.css", "words.js", "icon.svg"}) {
    EXPECT_NE(client.request("GET", std::string("/page/") + name).body, "") << name;
    EXPECT_EQ(client.request("HEAD", std::string("/page/") + name).status, 200) << name;
  }
  EXPECT_EQ(client.request("GET", "/page/../server.cc").status, 404);
  EXPECT_EQ(client.request("POST", "/").status, 401) << "no route: the key comes first";
}

TEST(Http, a_silent_connection_is_closed) {
  server::ServerOptions options;
  options.http.keep_alive_timeout = milliseconds(100);
  options.http.read_timeout = milliseconds(100);
  const auto server = Running::shared().serve(options);
  EXPECT_EQ(Client(server->port()).read_reply().status, 0);
  Client slow(server->port());
  slow.send("POST /tokenize HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(slow.read_reply().status, 408);
}

TEST(Http, a_key_opens_everything_but_health) {
  server::ServerOptions options;
  options.api_key = "secret";
  const auto server = Running::shared().serve(options);
  Client client(server->port());
  EXPECT_EQ(client.request("GET", "/health").status, 200);
  for (const char* path : {"/ready", "/v1/models", "/metrics", "/v1/longspan/status", "/nowhere"})
    EXPECT_EQ(client.request("GET", path).status, 401) << path;
  EXPECT_EQ(client.post("/tokenize", {{"prompt", "a"}}).status, 401);
  EXPECT_EQ(client.request("GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST(Disconnect, T73_a_client_that_leaves_frees_the_engine_while_it_decodes) {
  for (const bool stream : {true, false}) {
    {
      Client client(port());
      client.send(raw(endless({{"stream", stream}})));
      ASSERT_TRUE(runs(1));
    }
    EXPECT_TRUE(Running::shared().becomes_idle()) << "stream " << stream;
  }
  EXPECT_EQ(Running::shared().engine().status().pages.num_free,
            Running::shared().engine().status().pages.num_pages);
}

TEST(Disconnect, T73_a_client_that_leaves_in_the_queue_never_starts) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kRows + 3; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(raw(endless()));
  }
  ASSERT_TRUE(runs(kRows));
  clients.clear();
  EXPECT_TRUE(Running::shared().becomes_idle());
  EXPECT_EQ(status()["requests"], Json::array());
}

TEST(Disconnect, T74_many_random_aborts_leave_nothing_behind) {
  for (int i = 0; i < 60; ++i) {
    Client client(port());
    client.send(raw(endless({{"stream", i % 3 != 0}, {"max_tokens", 40}})));
    std::this_thread::sleep_for(milliseconds(i * 7 % 23));
  }
  EXPECT_TRUE(Running::shared().becomes_idle());
  EXPECT_EQ(Client(port()).post(kChat, user_says("Hi")).status, 200);
}

TEST(Operation, a_request_is_listed_and_can_be_cancelled) {
  Client client(port());
  client.send("POST /v1/chat/completions HTTP/1.1\r\nX-Request-Id: to-cancel\r\nContent-Length: " +
              std::to_string(endless().dump().size()) + "\r\n\r\n" + endless().dump());
  ASSERT_TRUE(runs(1));
  const Json state = status();
  ASSERT_EQ(state["requests"].size(), 1u);
  EXPECT_EQ(state["requests"][0]["id"], "to-cancel");
  EXPECT_EQ(Client(port()).request("POST", "/v1/requests/chatcmpl-to-cancel/cancel").status, 200);
  EXPECT_EQ(client.read_reply().json()["error"]["code"], "cancelled");
  EXPECT_EQ(Client(port()).request("POST", "/v1/requests/to-cancel/cancel").status, 404);
  EXPECT_TRUE(Running::shared().becomes_idle());
}

TEST(Operation, a_full_queue_is_503_with_retry_after) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kRows + kQueue + 4; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(raw(endless({{"stream", true}})));
  }
  int num_refused = 0;
  for (const auto& client : clients) {
    const Reply head = client->read_head();  // of a stream it comes at once
    if (head.status == 200) continue;
    EXPECT_EQ(head.status, 503);
    EXPECT_EQ(head.headers.at("retry-after"), "2");
    ++num_refused;
  }
  EXPECT_GT(num_refused, 0);
  clients.clear();
  EXPECT_TRUE(Running::shared().becomes_idle());
}

TEST(Operation, metrics_count_what_was_done) {
  const auto metrics = [] { return Client(port()).request("GET", "/metrics").body; };
  const auto value = [](const std::string& text, const std::string& name) {
    const size_t at = text.find("\n" + name + "{");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(text.find("} ", at) + 2));
  };
  const double before = value(metrics(), "longspan_generation_tokens_total");
  const Json answer = Client(port()).post(kChat, user_says("Hello!")).json();
  EXPECT_TRUE(Running::shared().becomes_idle());
  const std::string after = metrics();
  EXPECT_EQ(value(after, "longspan_generation_tokens_total") - std::max(before, 0.0),
            answer["usage"]["completion_tokens"].get<double>());
  EXPECT_EQ(value(after, "longspan_requests_running"), 0);
  EXPECT_GT(value(after, "longspan_time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(after.find("vllm:"), std::string::npos);
  server::ServerOptions options;
  options.vllm_metrics = true;
  const auto server = Running::shared().serve(options);
  EXPECT_GE(value(Client(server->port()).request("GET", "/metrics").body, "vllm:num_requests_running"), 0);
}

TEST(Operation, waiting_prefill_and_decode_of_a_request_are_timed) {
  const auto value = [](const std::string& name) {
    const std::string text = Client(port()).request("GET", "/metrics").body;
    const size_t at = text.find("\nlongspan_request_" + name + "{");
    return std::stod(text.substr(text.find("} ", at) + 2));
  };
  EXPECT_TRUE(Running::shared().becomes_idle());
  const double before[] = {value("queue_time_seconds_count"), value("queue_time_seconds_sum"),
                           value("prefill_time_seconds_sum"), value("decode_time_seconds_sum"),
                           value("seconds_sum")};
  EXPECT_EQ(Client(port()).post(kChat, endless({{"max_tokens", 20}})).status, 200);
  EXPECT_TRUE(Running::shared().becomes_idle());
  EXPECT_EQ(value("queue_time_seconds_count") - before[0], 1);
  const double queue = value("queue_time_seconds_sum") - before[1];
  const double prefill = value("prefill_time_seconds_sum") - before[2];
  const double decode = value("decode_time_seconds_sum") - before[3];
  EXPECT_GE(queue, 0);
  EXPECT_GT(prefill, 0);
  EXPECT_GT(decode, 0);
  EXPECT_LE(queue + prefill + decode, value("seconds_sum") - before[4] + 1e-6);  // parts of its time
}

TEST(Operation, the_status_tells_how_decode_inputs_were_made) {
  const Json before = status()["decode_inputs"];
  EXPECT_EQ(before["reserved"], true);
  EXPECT_EQ(Client(port()).post(kChat, endless({{"max_tokens", 20}})).status, 200);
  EXPECT_TRUE(Running::shared().becomes_idle());
  const Json after = status()["decode_inputs"];
  // The prompt's step and the first decode step have no like before them.
  EXPECT_EQ(after["dispatched"].get<int64_t>() - before["dispatched"].get<int64_t>(), 18);
  EXPECT_GE(after["misses"]["same_sequence"].get<int64_t>(), 1);
}

TEST(Operation, T81_a_silent_stream_gets_comments_by_the_clock) {
  server::ServerOptions options;
  options.keepalive_seconds = 0.15;
  const auto server = Running::shared().serve(options);
  std::vector<std::unique_ptr<Client>> others;  // take every row
  for (int i = 0; i < kRows; ++i) {
    others.push_back(std::make_unique<Client>(server->port()));
    others.back()->send(raw(endless()));
  }
  ASSERT_TRUE(runs(kRows));
  Client waiting(server->port());
  waiting.send(raw(endless({{"stream", true}, {"max_tokens", 2}})));
  ASSERT_TRUE(waiting.read_until(": keep-alive\n\n"));
  ASSERT_TRUE(waiting.read_until(": keep-alive\n\n\r\ne\r\n: keep-alive\n\n"));  // a chunk of 14 bytes each
  others.clear();
  const Reply reply = waiting.read_reply();
  EXPECT_EQ(reply.events().back(), "[DONE]");
  EXPECT_EQ(reply.body.find("keep-alive", reply.body.find("[DONE]")), std::string::npos);
  Client silent(server->port());
  const Reply off =
      silent.post(kChat, endless({{"stream", true}, {"max_tokens", 2}, {"sse_ping_interval", 0}}));
  EXPECT_EQ(off.body.find(": keep-alive"), std::string::npos);
  EXPECT_TRUE(Running::shared().becomes_idle());
}

TEST(Operation, progress_of_a_long_prompt_is_told_when_asked_for) {
  std::string words;
  for (int i = 0; i < 900; ++i) words += "word ";
  Json body = user_says(words);
  body.update({{"stream", true}, {"return_progress", true}, {"max_tokens", 2}});
  int64_t last = -1;
  int64_t total = 0;
  for (const std::string& event : Client(port()).post(kChat, body).events()) {
    if (event == "[DONE]") continue;
    const Json json = Json::parse(event);
    if (!json.contains("prompt_progress")) continue;
    EXPECT_GT(json["prompt_progress"]["processed"].get<int64_t>(), last);
    last = json["prompt_progress"]["processed"];
    total = json["prompt_progress"]["total"];
  }
  EXPECT_GT(last, 0);
  EXPECT_GT(total, 900);
}

TEST(Operation, T80_draining_finishes_what_runs_and_refuses_what_is_new) {
  server::ServerOptions options;
  options.shutdown_timeout_seconds = 30;
  const auto server = Running::shared().serve(options);
  Client running(server->port());
  running.send(raw(endless({{"stream", true}, {"max_tokens", 200}})));
  ASSERT_TRUE(runs(1));
  bool drained = false;
  std::thread drain([&] { drained = server->drain(); });
  Client late(server->port());
  Reply refused;
  for (int i = 0; i < 100 && refused.status != 503; ++i) refused = late.post(kChat, user_says("Hi"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(late.request("GET", "/ready").status, 503);
  EXPECT_EQ(late.request("GET", "/health").status, 200);
  EXPECT_EQ(running.read_reply().events().back(), "[DONE]");
  drain.join();
  EXPECT_TRUE(drained);
}

TEST(Operation, an_answer_that_takes_too_long_ends_with_an_error) {
  server::ServerOptions options;
  options.request_timeout_seconds = 0.3;
  const auto server = Running::shared().serve(options);
  const Reply whole = Client(server->port()).post(kChat, endless());
  EXPECT_EQ(whole.status, 408);
  EXPECT_EQ(whole.json()["error"]["code"], "request_timeout");
  EXPECT_EQ(whole.headers.at("x-should-retry"), "false");
  const std::vector<std::string> events =
      Client(server->port()).post(kChat, endless({{"stream", true}})).events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], "request_timeout");
  EXPECT_TRUE(Running::shared().becomes_idle());
}

TEST(Operation, stopping_ends_what_does_not_finish) {
  server::ServerOptions options;
  options.shutdown_timeout_seconds = 0.05;
  auto server = Running::shared().serve(options);
  Client running(server->port());
  running.send(raw(endless({{"stream", true}})));
  ASSERT_TRUE(runs(1));
  EXPECT_FALSE(server->drain());
  server->stop();
  EXPECT_TRUE(Running::shared().becomes_idle());
}

}  // namespace
}  // namespace longspan::testing
