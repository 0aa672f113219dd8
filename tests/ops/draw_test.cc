// The host's draw against its slow twin, and the integers that it is made of.
#include "ops/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace longspan::ops {
namespace {

TEST(DrawWeight, IsTheProbability) {
  EXPECT_EQ(draw_weight(0), uint64_t{1} << 40);
  EXPECT_EQ(draw_weight(kFar), 0u);
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t distance = random() % (uint32_t{8} << kDistanceBits);
    const double want = std::exp2(40 - distance * std::exp2(-kDistanceBits));
    ASSERT_NEAR(static_cast<double>(draw_weight(distance)) / want, 1, 2e-8) << distance;
    ASSERT_GE(draw_weight(distance), draw_weight(distance + 1)) << distance;
  }
}

TEST(DrawWeight, DistancesFallOffWhereNobodyIsDrawn) {
  const auto scale = static_cast<float>(std::exp2(kDistanceBits) * kLog2E);
  EXPECT_EQ(draw_distance(3, 3, scale), 0u);
  EXPECT_NEAR(draw_distance(3, 2, scale), std::exp2(kDistanceBits) * kLog2E, 4);
  EXPECT_EQ(draw_distance(3, -std::numeric_limits<float>::infinity(), scale), kFar);
  EXPECT_EQ(draw_distance(3, -100, scale), kFar);
  EXPECT_EQ(draw_distance(1, std::nextafter(1.0f, 0.0f), std::numeric_limits<float>::max()), kFar);
}

TEST(MulHigh, IsTheUpperHalf) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t a = random() >> random() % 64, b = random() >> random() % 64;
    __extension__ using Wide = unsigned __int128;
    ASSERT_EQ(mul_high(a, b), static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64)) << a << " " << b;
  }
}

// As the contract says it: everything sorted, one candidate after the other.
int32_t slow_draw(const std::vector<float>& logits, const DrawRow& row) {
  const float best = *std::max_element(logits.begin(), logits.end());
  std::vector<std::pair<uint32_t, int32_t>> kept;
  for (size_t i = 0; i < logits.size(); ++i)
    kept.emplace_back(draw_distance(best, logits[i], row.scale), static_cast<int32_t>(i));
  std::sort(kept.begin(), kept.end());
  if (row.top_k > 0 && row.top_k < kept.size()) kept.resize(row.top_k);
  const auto first_that_hold = [&](uint64_t share) {
    uint64_t total = 0, sum = 0;
    for (const auto& [distance, id] : kept) total += draw_weight(distance);
    size_t count = 0;
    while (sum < share_of(total, share)) sum += draw_weight(kept[count++].first);
    return count;
  };
  kept.resize(first_that_hold(row.top_p));
  std::erase_if(kept, [&](const auto& one) { return one.first > row.max_distance; });
  return kept[first_that_hold(draw_random(row.state)) - 1].second;
}

TEST(DrawToken, IsTheSlowTwins) {
  std::mt19937 random(3);
  std::vector<uint64_t> keys;
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(1 + random() % 300);
    const bool ties = round % 2 == 0;
    for (float& logit : logits) {
      logit = std::normal_distribution<float>(0, 4)(random);
      if (ties) logit = std::round(logit);
      if (random() % 10 == 0) logit = -std::numeric_limits<float>::infinity();
    }
    logits[random() % logits.size()] = 1;
    const DrawRow row{
        .scale = static_cast<float>(std::exp2(kDistanceBits)) * (random() % 2 == 0 ? 0.4f : 3.0f),
        .top_k = random() % 3 == 0 ? 1 + static_cast<uint32_t>(random() % 40) : 0,
        .max_distance = random() % 3 == 0 ? uint32_t{2} << kDistanceBits : kFar,
        .top_p = random() % 3 == 0 ? uint64_t{random()} << 32 : ~uint64_t{0},
        .state = random()};
    ASSERT_EQ(draw_token(logits, row, keys), slow_draw(logits, row)) << "round " << round;
  }
}

}  // namespace
}  // namespace longspan::ops
