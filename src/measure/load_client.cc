#include "measure/load_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <random>
#include <thread>

#include "core/error.h"
#include "text/utf8.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxErrorBytes = 300;

double elapsed_s(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The server's own words where it sent some.
std::string answer_error(const server::HttpAnswer& answer) {
  const Json body = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  std::string message;
  if (body.is_object() && body.contains("error") && body["error"].is_object())
    message = body["error"].value("message", "");
  else if (body.is_object() && body.contains("message") && body["message"].is_string())
    message = body["message"];
  if (message.empty()) message = text::replace_invalid_utf8(answer.body.substr(0, kMaxErrorBytes));
  return fmt::format("HTTP {}: {}", answer.status, message);
}

AnswerRecord send_one(const LoadTarget& target, const BenchPrompt& prompt, Clock::time_point round_start) {
  const server::HttpQuery query{.method = "POST",
                                .path = target.path,
                                .headers = bench_headers(target.api_key),
                                .body = request_body(target, prompt).dump()};
  AnswerTimer timer(target.endpoint);
  std::string error;
  const Clock::time_point start = Clock::now();
  try {
    const server::HttpAnswer answer =
        server::http_request(target.url, target.timeouts, query,
                             [&](std::string_view piece) { timer.on_piece(elapsed_s(start), piece); });
    if (answer.status != 200) error = answer_error(answer);
  } catch (const Error& thrown) {
    error = thrown.what();
  }
  AnswerRecord record = timer.finish(std::move(error));
  record.start_s = std::chrono::duration<double>(start - round_start).count();
  return record;
}

}  // namespace

server::HttpUrl bench_url(std::string_view base_url) {
  server::HttpUrl url = server::parse_http_url(base_url);
  constexpr std::string_view kVersion = "/v1";
  if (url.path.size() >= kVersion.size() &&
      url.path.compare(url.path.size() - kVersion.size(), kVersion.size(), kVersion) == 0)
    url.path.resize(url.path.size() - kVersion.size());
  return url;
}

std::vector<std::pair<std::string, std::string>> bench_headers(const std::string& api_key) {
  std::vector<std::pair<std::string, std::string>> headers = {{"Content-Type", "application/json"}};
  if (!api_key.empty()) headers.emplace_back("Authorization", "Bearer " + api_key);
  return headers;
}

Json request_body(const LoadTarget& target, const BenchPrompt& prompt) {
  Json body = {{"model", target.model}};
  if (target.endpoint == BenchEndpoint::kChat)
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
  else
    body["prompt"] = prompt.text;
  body["max_tokens"] = prompt.max_output_tokens;
  body["temperature"] = target.temperature;
  if (target.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body.update(target.extra_body);
  return body;
}

std::vector<double> arrival_times(size_t num_requests, double rate, uint64_t seed) {
  std::vector<double> times(num_requests, 0.0);
  if (num_requests == 0 || std::isinf(rate)) return times;
  std::mt19937_64 random(seed);
  double now = 0;
  for (double& time : times) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    now += -std::log1p(-uniform) / rate;
    time = now;
  }
  const double stretch = static_cast<double>(num_requests) / rate / now;
  for (double& time : times) time *= stretch;
  return times;
}

LoadRound run_round(const LoadTarget& target, std::span<const BenchPrompt> prompts, const LoadPlan& plan,
                    const std::function<void(size_t done, size_t total)>& on_answer) {
  const size_t num_streams = std::min(
      prompts.size(), plan.max_concurrency > 0 ? static_cast<size_t>(plan.max_concurrency) : prompts.size());
  if (num_streams > kMaxStreams)
    fail(ErrorKind::kInvalid, "got {} streams at once, need at most {}: set --max-concurrency", num_streams,
         kMaxStreams);
  const std::vector<double> arrivals = arrival_times(prompts.size(), plan.request_rate, plan.seed);
  LoadRound round{.answers = std::vector<AnswerRecord>(prompts.size())};
  std::atomic<size_t> next{0};
  std::mutex mutex;  // guards num_done and on_answer
  size_t num_done = 0;
  if (on_answer) on_answer(0, prompts.size());
  const Clock::time_point start = Clock::now();
  const auto stream = [&] {
    for (size_t i = next++; i < prompts.size(); i = next++) {
      std::this_thread::sleep_until(
          start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrivals[i])));
      round.answers[i] = send_one(target, prompts[i], start);
      const std::lock_guard lock(mutex);
      if (on_answer) on_answer(++num_done, prompts.size());
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_streams; ++i) threads.emplace_back(stream);
  for (std::thread& thread : threads) thread.join();
  round.duration_s = elapsed_s(start);
  return round;
}

}  // namespace longspan::measure
