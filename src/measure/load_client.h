// LoadClient: a round of requests against an OpenAI-compatible server, streamed, at most so many at once,
// each sent no earlier than it arrives. One thread a stream: a client thread mostly sleeps in read().
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "measure/answer_record.h"
#include "measure/bench_prompt.h"
#include "server/http_client.h"

namespace longspan::measure {

inline constexpr int kMaxStreams = 1024;  // at once

struct LoadTarget {
  server::HttpUrl url;  // without /v1
  std::string path = "/v1/chat/completions";
  BenchEndpoint endpoint = BenchEndpoint::kChat;
  std::string api_key;
  std::string model;
  double temperature = 0;
  bool ignore_eos = false;
  nlohmann::ordered_json extra_body = nlohmann::ordered_json::object();  // its fields win
  server::HttpTimeouts timeouts;
};

struct LoadPlan {
  int max_concurrency = 1;                                        // 0: all at once
  double request_rate = std::numeric_limits<double>::infinity();  // requests a second
  uint64_t seed = 0;                                              // of the arrivals
};

struct LoadRound {
  std::vector<AnswerRecord> answers;  // [prompts], in their order
  double duration_s = 0;              // from the first arrival's clock to the last answer
};

// Base URLs are written with and without /v1. Throws kInvalid.
server::HttpUrl bench_url(std::string_view base_url);
std::vector<std::pair<std::string, std::string>> bench_headers(const std::string& api_key);
nlohmann::ordered_json request_body(const LoadTarget& target, const BenchPrompt& prompt);

// Seconds since the round's beginning: a Poisson process, stretched so that the last request arrives after
// exactly num_requests / rate, since a rate that depends on the seed would be noise in every figure.
std::vector<double> arrival_times(size_t num_requests, double rate, uint64_t seed);

// A request that fails is an answer with an error. Throws kInvalid for more than kMaxStreams at once.
// `on_answer` is called by one thread at a time, first with none done.
LoadRound run_round(const LoadTarget& target, std::span<const BenchPrompt> prompts, const LoadPlan& plan,
                    const std::function<void(size_t done, size_t total)>& on_answer);

}  // namespace longspan::measure
