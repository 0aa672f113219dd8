// An OpenAI-compatible server of a few lines, over a real socket: it counts a word a token, streams a script,
// and can fail, cache and be cold as a test asks for.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "measure/scripted_stream.h"
#include "server/http_server.h"

namespace longspan::testing {

class ScriptedServer {
 public:
  using Json = nlohmann::ordered_json;

  // The n-th request's stream (from 0); its ms are waits from the request on. An empty script answers HTTP
  // 500.
  std::function<Script(int n, const Json& request)> answer = [](int, const Json&) {
    return Script{{0, chat_chunk(R"({"role":"assistant","content":""})")},
                  {1, chat_chunk(R"({"content":"Hello"})")},
                  {2, chat_chunk("{}", "stop")},
                  {2, usage_chunk(7, 2) + kDone}};
  };
  std::function<Json()> status;  // of /v1/longspan/status; empty: there is none
  bool counts_tokens = true;
  bool is_llama_cpp = false;  // counts {content} alone, has /apply-template and /props

  ScriptedServer()
      : server_(
            "127.0.0.1", 0, {}, [this](server::HttpRequest& request) { return respond(request); },
            [](int code, const std::string& message) {
              return server::HttpResponse{.status = code, .body = message};
            }) {
    server_.start();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_.port()); }
  std::vector<Json> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  static int count_words(const std::string& text) {
    int count = 0;
    bool inside = false;
    for (const char c : text) {
      const bool space = c == ' ' || c == '\n';
      count += !space && !inside ? 1 : 0;
      inside = !space;
    }
    return count;
  }

  server::HttpResponse respond(server::HttpRequest& request) {
    if (request.path == "/v1/models") return {.body = R"({"data":[{"id":"scripted"}]})"};
    if (request.path == "/v1/longspan/status" && status) return {.body = status().dump()};
    if (is_llama_cpp && request.path == "/props")
      return {.body = R"({"build_info":"b1-abc","total_slots":4})"};
    if (is_llama_cpp && request.path == "/apply-template")
      return {.body =
                  Json{{"prompt", "<user> " + Json::parse(request.body)["messages"][0].value("content", "") +
                                      " </user> <assistant>"}}
                      .dump()};
    if (request.path == "/tokenize" && is_llama_cpp) {
      const int count = count_words(Json::parse(request.body).value("content", ""));
      return {.body = Json{{"tokens", std::vector<int>(static_cast<size_t>(count))}}.dump()};
    }
    if (request.path == "/tokenize" && counts_tokens) {
      const Json body = Json::parse(request.body);
      const std::string text = body.contains("messages") ? body["messages"][0]["content"].get<std::string>()
                                                         : body.value("prompt", "");
      return {.body = Json{{"count", count_words(text)}}.dump()};
    }
    if (request.path != "/v1/chat/completions" && request.path != "/v1/completions")
      return {.status = 404, .body = "{}"};
    const auto arrived = std::chrono::steady_clock::now();
    const Json body = Json::parse(request.body);
    int n = 0;
    {
      const std::lock_guard lock(mutex_);
      n = static_cast<int>(requests_.size());
      requests_.push_back(body);
    }
    const Script script = answer(n, body);
    if (script.empty()) return {.status = 500, .body = R"({"error":{"message":"no such luck"}})"};
    server::HttpResponse response{.content_type = "text/event-stream"};
    response.stream = [script, arrived](server::BodyWriter& writer) {
      for (const auto& [ms, piece] : script) {
        std::this_thread::sleep_until(arrived + std::chrono::milliseconds(ms));
        writer.write(piece);
      }
    };
    return response;
  }

  std::mutex mutex_;
  std::vector<Json> requests_;  // guarded by mutex_
  server::HttpServer server_;   // last: its threads use what stands above
};

}  // namespace longspan::testing
