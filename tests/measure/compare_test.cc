// Every verdict of `bench compare`: what is noise, what is void, what may not be compared at all.
#include <gtest/gtest.h>

#include "core/error.h"
#include "measure/compare.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// Two buckets, a request each; `speed` scales every figure.
Json serving(double speed = 1) {
  Json json = {{"kind", "end_to_end"},  {"num_prompts", 1},
               {"request_rate", "inf"}, {"max_concurrency", 1},
               {"temperature", 0.0},    {"ignore_eos", true},
               {"failed", 0},           {"cold", false},
               {"void", Json::array()}, {"dataset", {{"name", "buckets"}, {"seed", 0}}}};
  json["buckets"] = {
      {{"name", "short"}, {"weight", 0.25}, {"output_throughput", 100 * speed}, {"mean_ttft_ms", 50 / speed}},
      {{"name", "long"}, {"weight", 0.75}, {"output_throughput", 20 * speed}, {"mean_ttft_ms", 400 / speed}}};
  json["requests"] = Json::array();
  for (const char* bucket : {"short", "long"})
    json["requests"].push_back({{"bucket", bucket},
                                {"error", ""},
                                {"prompt_hash", bucket},
                                {"completion_tokens", 4},
                                {"text", "The answer is 42."},
                                {"reasoning", ""},
                                {"tool_calls", ""}});
  json["counters"] = {{"dispatch", {{"hits", {{"unified", 10}, {"vendor_prefill", 0}}}}}};
  json["environment"] = {
      {"client", {{"machine", {{"cpu", "Z"}}}, {"program", {{"pid", 1}}}}},
      {"server",
       {{"device", "cpu"},
        {"build", {{"hash", "aa"}, {"pid", 7}}},
        {"plan", {{"page_tokens", 784}}},
        {"config", {{{"key", "cache.block_size"}, {"value", 16}, {"source", "default"}}}}}}};
  return json;
}

ResultFile file_of(Json json, const std::string& name = "x.json") { return parse_result(json.dump(), name); }
Comparison compared(const Json& a, const Json& b) { return compare_results(file_of(a), file_of(b)); }
Comparison compared(const Json& a, const Json& b, const Json& again) {
  const ResultFile a_again = file_of(again);
  return compare_results(file_of(a), file_of(b), &a_again);
}

const MetricRow& row_of(const Comparison& comparison, const std::string& group, const std::string& name) {
  for (const MetricRow& row : comparison.rows)
    if (row.group == group && row.name == name) return row;
  ADD_FAILURE() << group << " " << name;
  return comparison.rows.front();
}

bool says(const std::vector<std::string>& lines, const std::string& part) {
  for (const std::string& line : lines)
    if (line.find(part) != std::string::npos) return true;
  return false;
}

TEST(Compare, RatiosByBucketAndWeighted) {
  const Comparison comparison = compared(serving(), serving(1.5));
  EXPECT_TRUE(comparison.ok());
  EXPECT_DOUBLE_EQ(row_of(comparison, "short", "output_throughput").ratio(), 1.5);
  EXPECT_EQ(row_of(comparison, "short", "output_throughput").verdict(), RatioVerdict::kBetter);
  EXPECT_EQ(row_of(comparison, "long", "mean_ttft_ms").verdict(), RatioVerdict::kBetter)
      << "less time is better";
  EXPECT_DOUBLE_EQ(row_of(comparison, "weighted", "output_throughput").a, 0.25 * 100 + 0.75 * 20);
  EXPECT_EQ(row_of(compared(serving(1.5), serving()), "long", "output_throughput").verdict(),
            RatioVerdict::kWorse);
}

TEST(Compare, WithinOnePercentIsNoise) {
  EXPECT_EQ(row_of(compared(serving(), serving(1.009)), "short", "output_throughput").verdict(),
            RatioVerdict::kNoise);
  EXPECT_EQ(row_of(compared(serving(), serving(0.992)), "short", "output_throughput").verdict(),
            RatioVerdict::kNoise);
  EXPECT_EQ(row_of(compared(serving(), serving(1.02)), "short", "output_throughput").verdict(),
            RatioVerdict::kBetter);
}

TEST(Compare, ADriftOfTheTwoAsVoidsTheRun) {
  const Comparison steady = compared(serving(), serving(1.5), serving(1.005));
  EXPECT_TRUE(steady.ok()) << steady.voids.front();
  EXPECT_NEAR(row_of(steady, "short", "output_throughput").ratio(), 150 / 100.25, 1e-9)
      << "against the A's mean";
  const Comparison drifted = compared(serving(), serving(1.5), serving(1.05));
  EXPECT_FALSE(drifted.ok());
  EXPECT_TRUE(says(drifted.voids, "A drifted: short output_throughput"));
  EXPECT_EQ(row_of(drifted, "short", "output_throughput").verdict(), RatioVerdict::kVoid);
}

TEST(Compare, AThatIsNotAAgainVoidsTheRun) {
  Json again = serving();
  again["environment"]["server"]["build"]["hash"] = "bb";
  EXPECT_TRUE(says(compared(serving(), serving(2), again).voids, "they differ in server.build"));
  again = serving();
  again["requests"][0]["text"] = "Another.";
  EXPECT_TRUE(says(compared(serving(), serving(2), again).voids, "does not repeat itself"));
}

// A trap of the reports: a fast path that changes the answers.
TEST(Compare, OutputsThatDifferAreShown) {
  Json b = serving(2);
  b["requests"][1]["text"] = "The answer is 43.";
  const Comparison comparison = compared(serving(), b);
  EXPECT_FALSE(comparison.ok());
  EXPECT_TRUE(comparison.voids.empty()) << "not void: wrong";
  ASSERT_EQ(comparison.outputs.differences.size(), 1U);
  const OutputDifference& difference = comparison.outputs.differences[0];
  EXPECT_EQ(difference.request, 1U);
  EXPECT_EQ(difference.bucket, "long");
  EXPECT_EQ(difference.first_char, 15U);
  EXPECT_EQ(difference.a, "2.");
  EXPECT_EQ(difference.b, "3.");
  EXPECT_NE(to_text(comparison).find("OUTPUTS DIFFER"), std::string::npos);
}

TEST(Compare, TokenCountsThatDifferAreShown) {
  Json b = serving();
  b["requests"][0]["completion_tokens"] = 5;
  const Comparison comparison = compared(serving(), b);
  ASSERT_EQ(comparison.outputs.differences.size(), 1U);
  EXPECT_EQ(comparison.outputs.differences[0].what, "tokens");
  EXPECT_FALSE(comparison.ok());
}

TEST(Compare, TheFirstDifferenceIsCountedInCharacters) {
  EXPECT_EQ(first_difference("同じ文", "同じ字"), 2U);
  EXPECT_EQ(first_difference("abc", "abcd"), 3U);
  EXPECT_EQ(first_difference("é", "è"), 0U) << "they share their first byte";
  EXPECT_EQ(first_difference("same", "same"), std::nullopt);
}

// A trap of the reports: a kernel's ratio, quoted as the service's.
TEST(Compare, KindsNeverMix) {
  const Json kernel = {
      {"kind", "kernel"},
      {"figures", {{{"op", "attention"}, {"variant", "paged"}, {"shape", "q=1"}, {"median_us", 10.0}}}}};
  const Json profile = {{"kind", "profile"}, {"classes", {{{"name", "attention"}, {"ms", 5.0}}}}};
  try {
    compare_results(file_of(serving(), "service.json"), file_of(kernel, "kernel.json"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "service.json measures end to end, kernel.json measures a kernel alone: their ratio would "
                 "mean nothing. Measure both in the same way");
  }
  EXPECT_THROW(compared(profile, kernel), Error);
  EXPECT_THROW(compared(profile, serving()), Error);
  Json faster = kernel;
  faster["figures"][0]["median_us"] = 5.0;
  const Comparison comparison = compared(kernel, faster);
  EXPECT_EQ(row_of(comparison, "attention paged q=1", "median_us").verdict(), RatioVerdict::kBetter);
  EXPECT_TRUE(says(comparison.remarks, "no ratio of them is a ratio of a service"));
}

TEST(Compare, ProfilesOfDifferentWorkAreVoid) {
  Json a = {{"kind", "profile"},
            {"window", {{"prompt_tokens", 100}, {"decode_tokens", 9}}},
            {"classes", {{{"name", "attention"}, {"ms", 5.0}}}}};
  Json b = a;
  EXPECT_TRUE(compared(a, b).ok());
  b["window"]["prompt_tokens"] = 200;
  EXPECT_TRUE(says(compared(a, b).voids, "prompt_tokens 100 against 200"));
}

TEST(Compare, PrefixHitsColdRoundsAndFailuresVoid) {
  Json b = serving(3);
  b["void"] = {"prefix cache: 1 of 2 requests took 832 prompt tokens from it"};
  EXPECT_TRUE(says(compared(serving(), b).voids, "B: prefix cache"));
  b = serving(3);
  b["cold"] = true;
  EXPECT_TRUE(says(compared(b, serving()).voids, "A: measured cold"));
  b = serving(3);
  b["failed"] = 1;
  EXPECT_TRUE(says(compared(serving(), b).voids, "B: 1 requests failed"));
}

TEST(Compare, OtherWorkIsVoid) {
  Json b = serving();
  b["max_concurrency"] = 4;
  EXPECT_TRUE(says(compared(serving(), b).voids, "max_concurrency 1 against 4"));
  b = serving();
  b["dataset"]["seed"] = 1;
  EXPECT_TRUE(says(compared(serving(), b).voids, "dataset/seed 0 against 1"));
  b = serving();
  b["requests"][0]["prompt_hash"] = "other";
  EXPECT_TRUE(says(compared(serving(), b).voids, "their prompts are not the same"));
}

TEST(Compare, OtherPathsAreSaid) {
  Json b = serving(2);
  b["counters"]["dispatch"]["hits"] = {{"unified", 2}, {"vendor_prefill", 8}};
  const Comparison comparison = compared(serving(), b);
  EXPECT_TRUE(comparison.ok()) << "it may be the thing under test";
  EXPECT_TRUE(says(comparison.counters, "dispatch.hits.vendor_prefill: 0 against 8"));
  EXPECT_TRUE(compared(serving(), serving()).counters.empty());
}

TEST(Compare, OneSettingIsTheThingUnderTestAndItsPlanFollows) {
  Json b = serving(2);
  b["environment"]["server"]["config"][0]["value"] = 64;
  b["environment"]["server"]["plan"]["page_tokens"] = 832;
  b["environment"]["server"]["build"]["pid"] = 8;
  const Comparison comparison = compared(serving(), b);
  EXPECT_EQ(differing_things(comparison.environment),
            (std::vector<std::string>{"server.config.cache.block_size"}));
  EXPECT_TRUE(comparison.remarks.empty()) << comparison.remarks.front();
}

TEST(Compare, TwoThingsAreMoreThanTheThingUnderTest) {
  Json b = serving(2);
  b["environment"]["server"]["config"][0]["value"] = 64;
  b["environment"]["server"]["build"]["hash"] = "bb";
  const Comparison comparison = compared(serving(), b);
  EXPECT_TRUE(says(comparison.remarks, "differ in 2 things"));
  EXPECT_TRUE(says(comparison.remarks, "server.build, server.config.cache.block_size"));
  EXPECT_TRUE(comparison.ok());
}

TEST(Compare, TwoPlacesAreVoid) {
  Json b = serving(2);
  b["environment"]["server"]["device"] = "gfx936";
  EXPECT_TRUE(says(compared(serving(), b).voids, "measured in two places: server.device cpu against gfx936"));
}

TEST(Compare, AnotherProgramMayNotSayWhereItRuns) {
  Json b = serving(2);
  b["environment"]["server"] = {{"model", "model.gguf"}, {"build_info", "b1-0c1e570"}};
  for (int i = 0; i < 9; ++i) b["environment"]["server"]["setting" + std::to_string(i)] = i;
  const Comparison comparison = compared(serving(), b);
  EXPECT_TRUE(comparison.ok());
  EXPECT_TRUE(says(comparison.remarks, "B does not say its server.device: whether it is cpu is not known"));
  EXPECT_TRUE(says(comparison.remarks, "things, so a ratio belongs to all of them together: server.build"));
  EXPECT_TRUE(says(comparison.remarks, ", ..."));
}

TEST(Compare, TheSameThingTwiceIsSaid) {
  EXPECT_TRUE(says(compared(serving(), serving()).remarks, "one thing, measured twice"));
}

TEST(Compare, VllmsFilesAreRead) {
  const Json vllm = {{"backend", "openai-chat"},
                     {"num_prompts", 2},
                     {"max_concurrency", 1},
                     {"completed", 2},
                     {"failed", 0},
                     {"output_throughput", 10.0},
                     {"mean_ttft_ms", 100.0},
                     {"input_lens", {5, 6}},
                     {"output_lens", {2, 2}},
                     {"generated_texts", {"a", "b"}},
                     {"errors", {"", ""}}};
  Json other = vllm;
  other["output_throughput"] = 12.0;
  other["generated_texts"][1] = "c";
  const Comparison comparison = compared(vllm, other);
  EXPECT_DOUBLE_EQ(row_of(comparison, "all", "output_throughput").ratio(), 1.2);
  EXPECT_EQ(comparison.outputs.differences.size(), 1U);
  EXPECT_TRUE(says(comparison.remarks, "whether anything else differs is not known"));
}

TEST(Compare, WhatIsNoMeasurementIsRefused) {
  EXPECT_THROW(parse_result("[]", "x"), Error);
  EXPECT_THROW(parse_result("{}", "x"), Error);
  EXPECT_THROW(parse_result(R"({"kind":"peak"})", "x"), Error);
  Json broken = serving();
  broken["requests"][0]["text"] = 5;
  EXPECT_THROW(compared(serving(), broken), Error);
}

TEST(Compare, JsonHasTheVerdicts) {
  const Json json = to_json(compared(serving(), serving(1.5), serving(1.05)));
  EXPECT_EQ(json["ok"], false);
  EXPECT_FALSE(json["void"].empty());
  EXPECT_EQ(json["rows"][0]["verdict"], "void");
  EXPECT_EQ(json["rows"][0]["metric"], "output_throughput");
}

}  // namespace
}  // namespace longspan::measure
