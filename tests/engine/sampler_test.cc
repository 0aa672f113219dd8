#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace longspan::engine {
namespace {

class SamplerTest : public ::testing::Test {
 protected:
  int32_t sample(std::vector<float> logits, const SamplingParams& params,
                 const std::vector<int32_t>& prompt = {}, const std::vector<int32_t>& answer = {},
                 const std::vector<int32_t>& ruled_out = {}) {
    SamplerState state(params, prompt, static_cast<int64_t>(logits.size()));
    for (int32_t token : answer) state.accept(token);
    Sampler sampler(static_cast<int64_t>(logits.size()));
    last_ = sampler.sample(TensorView(logits.data(), DType::kF32, {static_cast<Index>(logits.size())}),
                           params, state, {.ruled_out = ruled_out, .allowed = allowed_});
    return last_.token;
  }
  // How often each token comes out over many seeds.
  std::map<int32_t, double> frequencies(const std::vector<float>& logits, SamplingParams params,
                                        int draws = 20000) {
    std::map<int32_t, double> counts;
    for (int i = 0; i < draws; ++i) {
      params.seed = static_cast<uint64_t>(i);
      counts[sample(logits, params)] += 1.0 / draws;
    }
    return counts;
  }

  SampledToken last_;
  std::vector<uint64_t> allowed_ = {};  // bits, or empty
};

TEST_F(SamplerTest, GreedyTakesTheBestAndTheLowestIdOfATie) {
  EXPECT_EQ(sample({1, 3, 2}, {}), 1);
  EXPECT_EQ(sample({1, 3, 3, 2}, {}), 1);
}

TEST_F(SamplerTest, ATemperatureNextToZeroIsGreedy) {
  for (double temperature : {1e-5, 1e-6, 1e-310})
    EXPECT_EQ(frequencies({1, 2, 3, 2.5}, {.temperature = temperature}, 100).size(), 1u) << temperature;
  EXPECT_EQ(sample({1, 2, 3, 2.5}, {.temperature = 1e-310}), 2);
}

TEST_F(SamplerTest, ParametersOutOfRangeAreRefused) {
  for (const SamplingParams& params :
       {SamplingParams{.temperature = -0.1}, SamplingParams{.temperature = std::nan("")},
        SamplingParams{.top_k = -1}, SamplingParams{.top_p = 0}, SamplingParams{.min_p = 1.5},
        SamplingParams{.logit_bias = {{0, std::numeric_limits<float>::infinity()}}},
        SamplingParams{.num_logprobs = kMaxLogprobs + 1}})
    EXPECT_THROW(validate(params), Error);
  EXPECT_NO_THROW(validate({}));
}

TEST_F(SamplerTest, OnlyAllowedTokensAreChosen) {
  allowed_ = {0b0101};
  EXPECT_EQ(sample({1, 3, 2, 9}, {}), 2);
  EXPECT_EQ(sample({1, 3, 2, 9}, {.logit_bias = {{3, 100.0f}}}), 2);
  for (const auto& [token, share] : frequencies({1, 9, 1, 9}, {.temperature = 1}, 1000)) {
    EXPECT_TRUE(token == 0 || token == 2) << token;
    EXPECT_NEAR(share, 0.5, 0.1);
  }
  allowed_ = std::vector<uint64_t>(3);
  allowed_[2] = uint64_t{1} << 2;
  EXPECT_EQ(sample(std::vector<float>(140, 1), {.temperature = 5}), 130);
}

TEST_F(SamplerTest, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  const auto at_one = frequencies(logits, {.temperature = 1});
  EXPECT_NEAR(at_one.at(0), 0.5, 0.02);
  EXPECT_NEAR(at_one.at(2), 0.2, 0.02);
  const auto sharp = frequencies(logits, {.temperature = 0.5});  // p^2, normalised
  EXPECT_NEAR(sharp.at(0), 0.25 / 0.38, 0.02);
}

TEST_F(SamplerTest, FiltersKeepTheBest) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.1f), std::log(0.3f), std::log(0.2f)};
  const auto top_k = frequencies(logits, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(top_k.size(), 2u);
  EXPECT_NEAR(top_k.at(0), 4.0 / 7, 0.02);
  // 0.4 + 0.3 reaches 0.6: two stay. 0.75 needs the third.
  EXPECT_EQ(frequencies(logits, {.temperature = 1, .top_p = 0.6}).size(), 2u);
  EXPECT_EQ(frequencies(logits, {.temperature = 1, .top_p = 0.75}).size(), 3u);
  EXPECT_EQ(frequencies(logits, {.temperature = 1, .top_p = 1e-9}).size(), 1u);
  EXPECT_EQ(frequencies(logits, {.temperature = 1, .min_p = 0.6}).size(), 2u);  // 0.3 / 0.4 and 0.4 / 0.4
  // top_p looks at what top_k left: of {4, 3} / 7 the first has 0.57.
  EXPECT_EQ(frequencies(logits, {.temperature = 1, .top_k = 2, .top_p = 0.5}).size(), 1u);
}

TEST_F(SamplerTest, SameSeedSameToken) {
  const std::vector<float> logits(100, 0.0f);
  const int32_t first = sample(logits, {.temperature = 1, .seed = 7});
  EXPECT_EQ(sample(logits, {.temperature = 1, .seed = 7}), first);
  EXPECT_NE(sample(logits, {.temperature = 1, .seed = 7}, {}, {1}), first);  // the next position draws anew
}

TEST_F(SamplerTest, Penalties) {
  EXPECT_EQ(sample({2, 1.5f}, {.repetition_penalty = 2}, {0}), 1);    // 2 / 2 < 1.5, seen in the prompt
  EXPECT_EQ(sample({-1, -1.5f}, {.repetition_penalty = 2}, {0}), 1);  // -1 * 2 < -1.5
  EXPECT_EQ(sample({2, 1.5f}, {.presence_penalty = 1}, {0}), 0);      // the prompt does not count
  EXPECT_EQ(sample({2, 1.5f}, {.presence_penalty = 1}, {}, {0}), 1);
  EXPECT_EQ(sample({2, 1.5f}, {.frequency_penalty = 0.3}, {}, {0}), 0);  // 2 - 0.3 > 1.5
  EXPECT_EQ(sample({2, 1.5f}, {.frequency_penalty = 0.3}, {}, {0, 0}), 1);
}

TEST_F(SamplerTest, BiasAndRuledOutTokens) {
  EXPECT_EQ(sample({2, 1}, {.logit_bias = {{1, 5.0f}}}), 1);
  EXPECT_EQ(sample({2, 1}, {}, {}, {}, {0}), 1);
  EXPECT_EQ(sample({2, 1}, {.temperature = 1, .seed = 3}, {}, {}, {0}), 1);
}

TEST_F(SamplerTest, LogprobsAreOfTheRawLogits) {
  sample({std::log(0.5f), std::log(0.3f), std::log(0.2f)}, {.logit_bias = {{2, 50.0f}}, .num_logprobs = 2});
  EXPECT_EQ(last_.token, 2);
  EXPECT_NEAR(last_.logprob, std::log(0.2), 1e-5);
  ASSERT_EQ(last_.top.size(), 2u);
  EXPECT_EQ(last_.top[0].token, 0);
  EXPECT_NEAR(last_.top[1].logprob, std::log(0.3), 1e-5);
  sample({0, -std::numeric_limits<float>::infinity()}, {.num_logprobs = 2});
  EXPECT_EQ(last_.top[1].logprob, kMinLogprob);
}

TEST_F(SamplerTest, NonFiniteRowsAreReported) {
  sample({1, std::nanf(""), 2}, {});
  EXPECT_FALSE(last_.finite);
  sample({1, std::numeric_limits<float>::infinity()}, {});
  EXPECT_FALSE(last_.finite);
  sample({1, -std::numeric_limits<float>::infinity()}, {});
  EXPECT_TRUE(last_.finite);
}

}  // namespace
}  // namespace longspan::engine
