#include "measure/chat_answerer.h"

#include <chrono>

#include "measure/load_client.h"
#include "server/answer_reader.h"
#include "text/utf8.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kTopLogprobs = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class EngineAnswerer final : public ChatAnswerer {
 public:
  EngineAnswerer(engine::Engine& engine, const text::Tokenizer& tokenizer,
                 const text::ChatTemplate& chat_template)
      : engine_(engine), tokenizer_(tokenizer), prompter_(tokenizer, chat_template) {}

  std::string name() const override { return "this engine (" + engine_.info().device + ")"; }

  TaskAnswer answer(const Task& task) override {
    const Clock::time_point start = Clock::now();
    TaskAnswer answer;
    try {
      const server::ChatPrompt prompt = build(task);
      answer.prompt_tokens = std::ssize(prompt.ids);
      const Generated generated = generate(prompt, task.max_tokens, -1);
      answer.completion_tokens = std::ssize(generated.tokens);
      server::AnswerOptions options{.reasoning = prompt.opens_reasoning ? server::ReasoningMode::kOpen
                                                                        : server::ReasoningMode::kClosed};
      if (!task.tools.is_null()) options.tools = std::make_shared<text::ToolSchema>(task.tools);
      server::AnswerReader reader(tokenizer_, options);
      for (const engine::TokenOutput& token : generated.tokens) reader.push(token.token);
      reader.finish(generated.cut ? text::AnswerEnd::kCut : text::AnswerEnd::kComplete);
      server::Delta delta = reader.take();
      answer.content = std::move(delta.content);
      if (!delta.calls.empty()) {
        answer.call = delta.calls.front().name;
        answer.arguments = delta.calls.front().arguments;
      }
    } catch (const std::exception& error) {
      answer.error = error.what();
    }
    answer.seconds = seconds_since(start);
    return answer;
  }

  std::vector<ScoredToken> scored_answer(const Task& task) override {
    std::vector<ScoredToken> scored;
    const server::ChatPrompt prompt = build(task);
    for (const engine::TokenOutput& token : generate(prompt, task.max_tokens, kTopLogprobs).tokens) {
      ScoredToken& one = scored.emplace_back();
      one.text = tokenizer_.token_bytes(token.token);
      one.logprob = static_cast<double>(token.logprob);
      for (const engine::Logprob& other : token.top)
        one.top.emplace_back(tokenizer_.token_bytes(other.token), static_cast<double>(other.logprob));
    }
    return scored;
  }

  int64_t count_tokens(const std::string& text) override {
    return std::ssize(tokenizer_.encode(text, text::SpecialTokens::kAsText));
  }

 private:
  struct Generated {
    std::vector<engine::TokenOutput> tokens;
    bool cut = false;  // the token limit ended it
  };

  server::ChatPrompt build(const Task& task) const {
    Json request = {{"messages", task.messages}, {"add_generation_prompt", true}, {"enable_thinking", false}};
    if (!task.tools.is_null()) request["tools"] = task.tools;
    return prompter_.build(std::move(request));
  }

  Generated generate(const server::ChatPrompt& prompt, int64_t max_tokens, int32_t num_logprobs) {
    engine::GenerateRequest request{.prompt = prompt.ids, .max_new_tokens = max_tokens};
    request.sampling.num_logprobs = num_logprobs;
    engine::Response response = engine_.submit(std::move(request));
    Generated generated;
    engine::ResponseUpdate update;
    while (!update.done) {
      update = response.wait(std::chrono::seconds(10));
      for (engine::TokenOutput& token : update.tokens) generated.tokens.push_back(std::move(token));
    }
    if (update.reason == engine::FinishReason::kError) fail(ErrorKind::kEnvironment, "{}", update.error);
    generated.cut = update.reason == engine::FinishReason::kLength;
    return generated;
  }

  engine::Engine& engine_;
  const text::Tokenizer& tokenizer_;
  server::ChatPrompter prompter_;
};

class ServerAnswerer final : public ChatAnswerer {
 public:
  ServerAnswerer(const std::string& base_url, const std::string& api_key, const std::string& model)
      : base_url_(base_url), url_(bench_url(base_url)), headers_(bench_headers(api_key)), model_(model) {
    if (model_.empty()) model_ = first_model();
  }

  std::string name() const override { return base_url_; }

  TaskAnswer answer(const Task& task) override {
    const Clock::time_point start = Clock::now();
    TaskAnswer answer;
    try {
      const Json reply = post(request_of(task));
      const Json& message = reply.at("choices").at(0).at("message");
      if (message.contains("content") && message["content"].is_string())
        answer.content = message["content"].get<std::string>();
      if (message.contains("tool_calls") && message["tool_calls"].is_array() &&
          !message["tool_calls"].empty()) {
        const Json& function = message["tool_calls"][0].at("function");
        answer.call = function.value("name", "");
        answer.arguments = function.value("arguments", "");
      }
      const Json usage = reply.value("usage", Json::object());
      answer.prompt_tokens = usage.value("prompt_tokens", int64_t{0});
      answer.completion_tokens = usage.value("completion_tokens", int64_t{0});
    } catch (const std::exception& error) {
      answer.error = error.what();
    }
    answer.seconds = seconds_since(start);
    return answer;
  }

  std::vector<ScoredToken> scored_answer(const Task& task) override {
    Json request = request_of(task);
    request["logprobs"] = true;
    request["top_logprobs"] = kTopLogprobs;
    const Json reply = post(request);
    try {
      std::vector<ScoredToken> scored;
      for (const Json& entry : reply.at("choices").at(0).at("logprobs").at("content")) {
        ScoredToken& one = scored.emplace_back();
        one.text = token_text(entry);
        one.logprob = entry.at("logprob").get<double>();
        for (const Json& other : entry.at("top_logprobs"))
          one.top.emplace_back(token_text(other), other.at("logprob").get<double>());
      }
      return scored;
    } catch (const Json::exception& error) {
      fail(ErrorKind::kEnvironment, "{}: no logprobs with top_logprobs in the answer: {}", base_url_,
           error.what());
    }
  }

  int64_t count_tokens(const std::string& text) override {
    try {
      // Longspan and vLLM say {count}, llama.cpp {tokens}.
      const Json reply = post(Json{{"model", model_}, {"prompt", text}, {"content", text}}, "/tokenize");
      if (reply.contains("count")) return reply["count"].get<int64_t>();
      return static_cast<int64_t>(reply.at("tokens").size());
    } catch (const std::exception&) {
      return std::ssize(text) / 4;
    }
  }

 private:
  Json request_of(const Task& task) const {
    Json request = {{"model", model_},
                    {"messages", task.messages},
                    {"max_tokens", task.max_tokens},
                    {"temperature", 0},
                    {"chat_template_kwargs", {{"enable_thinking", false}}}};
    if (!task.tools.is_null()) request["tools"] = task.tools;
    return request;
  }

  // Some servers give bytes where a token is no text by itself.
  static std::string token_text(const Json& entry) {
    if (entry.contains("bytes") && entry["bytes"].is_array()) {
      std::string bytes;
      for (const Json& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
      return bytes;
    }
    return entry.at("token").get<std::string>();
  }

  Json post(const Json& body, const std::string& path = "/v1/chat/completions") const {
    server::HttpQuery query{.method = "POST", .path = path, .headers = headers_, .body = body.dump()};
    const server::HttpAnswer answer = server::http_request(url_, {}, query);
    const Json reply = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (answer.status != 200 || !reply.is_object())
      fail(ErrorKind::kEnvironment, "{}{}: {} {}", base_url_, path, answer.status,
           text::replace_invalid_utf8(answer.body.substr(0, 300)));
    return reply;
  }

  std::string first_model() const {
    const server::HttpAnswer answer =
        server::http_request(url_, {}, {.path = "/v1/models", .headers = headers_});
    const Json reply = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (answer.status != 200 || !reply.is_object() || !reply.contains("data") || reply["data"].empty())
      fail(ErrorKind::kEnvironment, "{}: /v1/models: got {}, need a list of models", base_url_,
           answer.status);
    return reply["data"][0].value("id", "");
  }

  std::string base_url_;
  server::HttpUrl url_;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::string model_;
};

}  // namespace

std::unique_ptr<ChatAnswerer> engine_answerer(engine::Engine& engine, const text::Tokenizer& tokenizer,
                                              const text::ChatTemplate& chat_template) {
  return std::make_unique<EngineAnswerer>(engine, tokenizer, chat_template);
}

std::unique_ptr<ChatAnswerer> server_answerer(const std::string& base_url, const std::string& api_key,
                                              const std::string& model) {
  return std::make_unique<ServerAnswerer>(base_url, api_key, model);
}

}  // namespace longspan::measure
