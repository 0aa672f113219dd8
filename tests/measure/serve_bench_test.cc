// `bench serve` against a scripted server over a socket: what it asks, what it measures, what it refuses to
// claim.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "measure/scripted_server.h"
#include "measure/serve_bench.h"

namespace longspan::measure {
namespace {

using testing::chat_chunk;
using testing::kDone;
using testing::Script;
using testing::ScriptedServer;
using testing::usage_chunk;
using Json = nlohmann::ordered_json;

struct Bench {
  ServeBenchOptions options;
  ServeResult result;
  Json json;
};

Bench run_bench(const ScriptedServer& server, DatasetOptions dataset, int max_concurrency = 1) {
  Bench bench;
  bench.options.target.url = bench_url(server.url());
  bench.options.dataset = std::move(dataset);
  bench.options.load.max_concurrency = max_concurrency;
  bench.result = run_serve_bench(bench.options, nullptr);
  bench.json = to_json(bench.options, bench.result, Json{{"version", "test"}});
  return bench;
}

Script answer_after(int first_ms, int cached = 0) {
  return {{0, ": keep-alive\n\n"},
          {first_ms, chat_chunk(R"({"content":"One"})")},
          {first_ms + 20, chat_chunk(R"({"content":" two"})", "length")},
          {first_ms + 20, usage_chunk(40, 2, cached) + kDone}};
}

TEST(ServeBench, TimesOverASocketAreTheScripts) {
  ScriptedServer server;
  server.answer = [](int, const Json&) { return answer_after(60); };
  const Bench bench = run_bench(server, {.num_prompts = 3, .num_warm_up = 0, .input_tokens = 40});
  EXPECT_EQ(bench.result.total.completed, 3);
  EXPECT_EQ(bench.json["model_id"], "scripted");
  for (const AnswerRecord& answer : bench.result.groups[0].warm.answers) {
    EXPECT_LT(answer.ttfr_s, answer.ttft_s);
    EXPECT_GE(answer.ttft_s, 0.060) << "never earlier than the server sent it";
    EXPECT_LT(answer.ttft_s, 30) << "and at some time";
    EXPECT_GE(answer.e2el_s, 0.080);
  }
  EXPECT_GE(bench.result.total.duration_s, 3 * 0.080) << "one at a time";
}

TEST(ServeBench, PromptsAreCountedByTheServer) {
  ScriptedServer server;
  const Bench bench =
      run_bench(server, {.num_prompts = 2, .num_warm_up = 1, .input_tokens = 40, .output_tokens = 5});
  ASSERT_EQ(server.requests().size(), 3U);
  for (const Json& request : server.requests()) {
    EXPECT_EQ(request["max_tokens"], 5);
    EXPECT_EQ(request["temperature"], 0.0);
    EXPECT_EQ(request["stream"], true);
  }
  EXPECT_EQ(bench.result.counted, "the server's /tokenize");
  EXPECT_EQ(bench.result.groups[0].group.measured[0].num_tokens, 40);
  EXPECT_FALSE(bench.result.notes.empty()) << "usage says 7 tokens: the reader is told";
}

// Its /tokenize knows no messages: the template's three words come from another route.
TEST(ServeBench, LlamaCppCountsTheTemplateToo) {
  ScriptedServer server;
  server.is_llama_cpp = true;
  server.answer = [](int, const Json&) { return answer_after(1); };  // usage: 40 prompt tokens
  const Bench bench = run_bench(server, {.num_prompts = 1, .num_warm_up = 1, .input_tokens = 40});
  EXPECT_TRUE(bench.result.notes.empty()) << bench.result.notes.front();
  EXPECT_EQ(bench.result.groups[0].group.measured[0].num_tokens, 40);
  const auto text = server.requests()[1]["messages"][0]["content"].get<std::string>();
  EXPECT_EQ(std::ranges::count_if(text, [](char c) { return c == ' ' || c == '\n'; }), 36) << text;
  EXPECT_EQ(bench.json["environment"]["server"]["version"], "b1-abc");
  EXPECT_EQ(bench.json["environment"]["server"]["total_slots"], 4);
}

// A trap of the reports: the first round of a fresh server, quoted as its speed.
TEST(ServeBench, TheColdRoundStandsApart) {
  ScriptedServer server;
  server.answer = [](int n, const Json&) { return answer_after(n < 2 ? 400 : 5); };  // compiles at first
  const Bench warm = run_bench(server, {.num_prompts = 2, .num_warm_up = 2, .input_tokens = 40});
  EXPECT_GE(warm.json["buckets"][0]["cold_round"]["mean_ttft_ms"].get<double>(), 400);
  EXPECT_LT(warm.result.total.ttft.mean, warm.result.groups[0].cold_metrics.ttft.mean)
      << "what the warm-up took is in no figure";
  EXPECT_EQ(warm.json["completed"], 2);
  EXPECT_EQ(warm.json["cold"], false);
  const Bench cold = run_bench(server, {.num_prompts = 2, .num_warm_up = 0, .input_tokens = 40});
  EXPECT_EQ(cold.json["cold"], true) << "a round without a warm-up says so";
  EXPECT_TRUE(cold.json["buckets"][0]["cold_round"].is_null());
}

// A trap of the reports: prefix caching on, so that prefill measures a look-up.
TEST(ServeBench, APrefixHitVoidsPrefill) {
  ScriptedServer server;
  server.answer = [](int n, const Json&) { return answer_after(5, /*cached=*/n == 1 ? 32 : 0); };
  const Bench bench = run_bench(server, {.num_prompts = 3, .num_warm_up = 0, .input_tokens = 40});
  ASSERT_EQ(bench.json["void"].size(), 1U);
  EXPECT_NE(bench.json["void"][0].get<std::string>().find("1 of 3 requests took 32 prompt tokens"),
            std::string::npos)
      << bench.json["void"];
  EXPECT_EQ(bench.json["requests"][1]["cached_tokens"], 32);
  server.answer = [](int, const Json&) { return answer_after(5); };
  EXPECT_TRUE(
      run_bench(server, {.num_prompts = 1, .num_warm_up = 0, .input_tokens = 40}).json["void"].empty());
}

TEST(ServeBench, FailuresAreListedWithTheirReasons) {
  ScriptedServer server;
  server.answer = [](int n, const Json&) {
    if (n == 0) return Script{};
    if (n == 1) return Script{{0, "data: {\"error\":{\"message\":\"out of pages\"}}\n\n"}, {0, kDone}};
    return answer_after(5);
  };
  const Bench bench = run_bench(server, {.num_prompts = 3, .num_warm_up = 0, .input_tokens = 40});
  EXPECT_EQ(bench.json["completed"], 1);
  EXPECT_EQ(bench.json["failed"], 2);
  EXPECT_EQ(bench.json["errors"], (Json{"HTTP 500: no such luck", "error in the stream: out of pages", ""}));
  EXPECT_EQ(bench.json["output_lens"], (Json{0, 0, 2}));
}

TEST(ServeBench, ResultsHoldEveryRequestAndVllmsArrays) {
  ScriptedServer server;
  server.answer = [](int, const Json&) { return answer_after(5); };
  const Bench bench = run_bench(server, {.num_prompts = 2, .num_warm_up = 0, .input_tokens = 40});
  for (const char* key : {"date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id",
                          "num_prompts", "request_rate", "burstiness", "max_concurrency", "input_lens",
                          "output_lens", "ttfts", "itls", "generated_texts", "errors"})
    EXPECT_TRUE(bench.json.contains(key)) << key;
  EXPECT_EQ(bench.json["kind"], "end_to_end");
  EXPECT_EQ(bench.json["request_rate"], "inf");
  EXPECT_EQ(bench.json["input_lens"], (Json{40, 40}));
  EXPECT_EQ(bench.json["generated_texts"], (Json{"One two", "One two"}));
  EXPECT_EQ(bench.json["requests"][1]["text"], "One two");
  EXPECT_NE(bench.json["requests"][0]["prompt_hash"], bench.json["requests"][1]["prompt_hash"]);
  EXPECT_EQ(bench.json["environment"]["client"]["version"], "test");
  EXPECT_TRUE(bench.json["score"].is_null()) << "a score is the contest's buckets'";
}

TEST(ServeBench, CountersAreThoseOfTheMeasuredRound) {
  ScriptedServer server;
  std::atomic<int> hits{5};
  server.status = [&] {
    return Json{{"model", "m"},
                {"plan", {{"page_tokens", 832}}},
                {"queue", {{"running", 1}}},
                {"dispatch", {{"hits", {{"unified", hits.load()}}}}}};
  };
  server.answer = [&](int, const Json&) {
    hits += 10;
    return answer_after(1);
  };
  const Bench bench = run_bench(server, {.num_prompts = 2, .num_warm_up = 3, .input_tokens = 40});
  EXPECT_EQ(bench.json["counters"]["dispatch"]["hits"]["unified"], 20) << "the warm-up's 30 are not in it";
  EXPECT_EQ(bench.json["environment"]["server"]["plan"]["page_tokens"], 832);
  EXPECT_FALSE(bench.json["environment"]["server"].contains("queue")) << "what passes is no environment";
}

TEST(ServeBench, ManyStreamsRunAtOnce) {
  ScriptedServer server;
  std::atomic<int> running{0}, most{0};
  server.answer = [&](int, const Json&) {
    const int now = ++running;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) continue;
    for (int i = 0; i < 3000 && most < 8; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    --running;
    return answer_after(1);
  };
  const Bench bench =
      run_bench(server, {.num_prompts = 8, .num_warm_up = 0, .input_tokens = 40}, /*max_concurrency=*/8);
  EXPECT_EQ(bench.result.total.completed, 8);
  EXPECT_EQ(most, 8);
}

TEST(ServeBench, WithoutTokenizeTheLengthsAreTheUsages) {
  ScriptedServer server;
  server.counts_tokens = false;
  const Bench bench = run_bench(server, {.num_prompts = 1, .num_warm_up = 0, .input_tokens = 40});
  EXPECT_EQ(bench.json["input_lens"], (Json{7}));
  ASSERT_FALSE(bench.result.notes.empty());
  EXPECT_NE(bench.result.notes[0].find("no /tokenize"), std::string::npos);
}

TEST(ServeBench, NoServerIsAnErrorAndNoResult) {
  ServeBenchOptions options;
  options.target.url = bench_url("http://127.0.0.1:1");
  EXPECT_THROW(run_serve_bench(options, nullptr), Error);
}

}  // namespace
}  // namespace longspan::measure
