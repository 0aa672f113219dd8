// `bench serve` against the real server and engine on the bundled model.
#include <gtest/gtest.h>

#include "measure/compare.h"
#include "measure/serve_bench.h"
#include "server/server_fixture.h"

namespace longspan::measure {
namespace {

using testing::Running;
using Json = nlohmann::ordered_json;

struct LiveBench {
  ServeResult result;
  Json json;
};

LiveBench bench_live(const Running& server, BenchEndpoint endpoint = BenchEndpoint::kChat,
                     int64_t num_warm_up = 1) {
  ServeBenchOptions options;
  options.target.url = bench_url("http://127.0.0.1:" + std::to_string(server.port()) + "/v1");
  options.target.endpoint = endpoint;
  if (endpoint == BenchEndpoint::kCompletions) options.target.path = "/v1/completions";
  options.target.ignore_eos = true;
  options.dataset = {.num_prompts = 2, .num_warm_up = num_warm_up, .input_tokens = 700, .output_tokens = 6};
  LiveBench bench{.result = run_serve_bench(options, nullptr), .json = {}};
  bench.json = to_json(options, bench.result, Json::object());
  return bench;
}

TEST(BenchLive, LengthsAreExactAndPathsAreCounted) {
  for (const BenchEndpoint endpoint : {BenchEndpoint::kChat, BenchEndpoint::kCompletions}) {
    const LiveBench bench = bench_live(Running::shared(), endpoint);
    EXPECT_EQ(bench.json["failed"], 0) << bench.json["errors"];
    EXPECT_EQ(bench.json["input_lens"], (Json{700, 700})) << "by the server's usage";
    EXPECT_EQ(bench.json["output_lens"], (Json{6, 6}));
    EXPECT_TRUE(bench.result.notes.empty()) << bench.result.notes.front();
    EXPECT_TRUE(bench.result.voids.empty()) << bench.result.voids.front();
    EXPECT_EQ(bench.json["counters"]["totals"]["prefill_tokens"], 1400) << "of the measured round alone";
    EXPECT_TRUE(bench.json["environment"]["server"].contains("plan"));
    EXPECT_GT(bench.result.total.ttft.mean, bench.result.total.ttfr.mean);
  }
}

TEST(BenchLive, TheSamePromptsGiveTheSameAnswers) {
  const Json a = bench_live(Running::shared()).json, b = bench_live(Running::shared()).json;
  const Comparison comparison = compare_results({.path = "a", .kind = ResultKind::kEndToEnd, .json = a},
                                                {.path = "b", .kind = ResultKind::kEndToEnd, .json = b});
  EXPECT_TRUE(comparison.ok());
  EXPECT_EQ(comparison.outputs.num_compared, 2U);
  EXPECT_TRUE(comparison.counters.empty()) << comparison.counters.front();
}

// A trap of the reports: prefix caching on.
TEST(BenchLive, APrefixCacheIsHitOnlyBySendingTheSamePromptsAgain) {
  EXPECT_TRUE(bench_live(Running::caching()).result.voids.empty()) << "no prompt is another's prefix";
  const LiveBench again = bench_live(Running::caching());
  ASSERT_EQ(again.result.voids.size(), 1U);
  EXPECT_NE(again.result.voids[0].find("2 of 2 requests"), std::string::npos) << again.result.voids[0];
}

}  // namespace
}  // namespace longspan::measure
