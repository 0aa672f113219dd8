// A round's figures: names and definitions of vLLM's serving benchmark.
#include <gtest/gtest.h>

#include "measure/load_client.h"
#include "measure/scripted_stream.h"
#include "measure/serve_metrics.h"

namespace longspan::measure {
namespace {

const std::vector<double> kPercentiles = {50, 99};
const std::vector<std::string> kAll = {"ttfr", "ttft", "tpot", "itl", "e2el"};

// Sent at start_s; tokens at ttft, ttft + itl, ...; the usage says `tokens`.
AnswerRecord answered(double start_s, double ttft_s, std::vector<double> itls_s, int64_t tokens) {
  AnswerRecord answer;
  answer.start_s = start_s;
  answer.ttfr_s = ttft_s / 2;
  answer.ttft_s = ttft_s;
  answer.e2el_s = ttft_s;
  for (const double itl : itls_s) answer.e2el_s += itl;
  answer.itls_s = std::move(itls_s);
  answer.prompt_tokens = 100;
  answer.completion_tokens = tokens;
  return answer;
}

TEST(ServeMetrics, ThroughputsAndTotals) {
  AnswerRecord failed = answered(0, 9, {9}, 9);
  failed.error = "HTTP 500";
  const std::vector<AnswerRecord> answers = {answered(0, 0.2, {0.1, 0.1}, 3), failed,
                                             answered(1, 0.4, {0.2}, 2)};
  const ServeMetrics metrics = serve_metrics(answers, std::vector<BenchPrompt>(3), 2.0, kPercentiles);
  EXPECT_EQ(metrics.completed, 2);
  EXPECT_EQ(metrics.failed, 1);
  EXPECT_EQ(metrics.total_input_tokens, 200);
  EXPECT_EQ(metrics.total_output_tokens, 5) << "a failed request adds nothing";
  EXPECT_DOUBLE_EQ(metrics.request_throughput, 1.0);
  EXPECT_DOUBLE_EQ(metrics.output_throughput, 2.5);
  EXPECT_DOUBLE_EQ(metrics.total_token_throughput, 102.5);
  EXPECT_DOUBLE_EQ(metrics.prefill_throughput, 200 / 0.6);
  EXPECT_NEAR(metrics.ttft.mean, 300, 1e-9);
  EXPECT_NEAR(metrics.ttfr.mean, 150, 1e-9);
  EXPECT_NEAR(metrics.tpot.mean, (100 + 200) / 2.0, 1e-9) << "a mean of requests, not of tokens";
  EXPECT_NEAR(metrics.itl.mean, (100 + 100 + 200) / 3.0, 1e-9) << "a mean of gaps";
  EXPECT_NEAR(metrics.e2el.mean, (400 + 600) / 2.0, 1e-9);
}

TEST(ServeMetrics, SpreadIsNumpys) {
  const MetricSpread spread = spread_of({0.004, 0.001, 0.002, 0.003}, std::vector<double>{25, 99});
  EXPECT_NEAR(spread.mean, 2.5, 1e-12);
  EXPECT_NEAR(spread.median, 2.5, 1e-12);
  EXPECT_NEAR(spread.std, 1.118033988749895, 1e-12) << "of the population";
  EXPECT_NEAR(spread.percentiles[0].second, 1.75, 1e-12);
  EXPECT_NEAR(spread.percentiles[1].second, 3.97, 1e-12);
  EXPECT_EQ(spread_of({}, kPercentiles).mean, 0);
}

TEST(ServeMetrics, PeaksAreCountedOnSeconds) {
  // Tokens at 0.5, 0.6 | 1.6 and at 1.2 (sent at 0.9) | 2.2.
  const std::vector<AnswerRecord> answers = {answered(0, 0.5, {0.1, 1.0}, 3), answered(0.9, 0.3, {1.0}, 2)};
  const ServeMetrics metrics = serve_metrics(answers, std::vector<BenchPrompt>(2), 3, kPercentiles);
  EXPECT_EQ(metrics.max_output_tokens_per_s, 2);
  EXPECT_EQ(metrics.max_concurrent_requests, 2);
}

TEST(ServeMetrics, KeysAreThoseOfVllm) {
  const std::vector<AnswerRecord> answers = {answered(0, 0.2, {0.1, 0.1}, 3)};
  const auto json =
      to_json(serve_metrics(answers, std::vector<BenchPrompt>(1), 2, std::vector<double>{99, 99.9}), kAll);
  for (const char* key : {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
                          "request_throughput", "request_goodput", "output_throughput",
                          "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"})
    EXPECT_TRUE(json.contains(key)) << key;
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"})
    for (const char* statistic : {"mean_", "median_", "std_", "p99_", "p99.9_"})
      EXPECT_TRUE(json.contains(std::string(statistic) + metric + "_ms")) << statistic << metric;
  EXPECT_NEAR(json["mean_ttft_ms"].get<double>(), 200, 1e-9);
}

TEST(ServeMetrics, OnlyWantedSpreadsAreTold) {
  const std::vector<AnswerRecord> answers = {answered(0, 0.2, {0.1}, 2)};
  const auto json = to_json(serve_metrics(answers, std::vector<BenchPrompt>(1), 2, kPercentiles),
                            std::vector<std::string>{"ttft"});
  EXPECT_TRUE(json.contains("p50_ttft_ms"));
  EXPECT_FALSE(json.contains("mean_itl_ms"));
}

TEST(Arrivals, ArePoissonOfTheSeedAndEndOnTime) {
  const std::vector<double> times = arrival_times(100, 4, 7);
  EXPECT_EQ(times, arrival_times(100, 4, 7));
  EXPECT_NE(times, arrival_times(100, 4, 8));
  EXPECT_NEAR(times.back(), 25, 1e-9) << "100 requests at 4 a second";
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_NE(times[1] - times[0], times[2] - times[1]);
  EXPECT_EQ(arrival_times(3, std::numeric_limits<double>::infinity(), 0), (std::vector<double>{0, 0, 0}));
}

TEST(Request, HasTheFieldsOfItsEndpoint) {
  LoadTarget target{.model = "m", .ignore_eos = true};
  target.extra_body = {{"top_k", 1}, {"temperature", 0.5}};
  const auto chat = request_body(target, {.text = "Hi", .max_output_tokens = 9});
  EXPECT_EQ(chat["messages"][0]["content"], "Hi");
  EXPECT_EQ(chat["max_tokens"], 9);
  EXPECT_EQ(chat["ignore_eos"], true);
  EXPECT_EQ(chat["temperature"], 0.5) << "the extra body wins";
  EXPECT_EQ(chat["stream_options"]["include_usage"], true);
  target.endpoint = BenchEndpoint::kCompletions;
  EXPECT_EQ(request_body(target, {.text = "Hi"})["prompt"], "Hi");
}

TEST(Request, BaseUrlsComeWithAndWithoutTheVersion) {
  EXPECT_EQ(bench_url("http://h:1/v1").path, "");
  EXPECT_EQ(bench_url("http://h:1/").path, "");
  EXPECT_EQ(bench_url("http://h:1/proxy/v1/").path, "/proxy");
}

}  // namespace
}  // namespace longspan::measure
