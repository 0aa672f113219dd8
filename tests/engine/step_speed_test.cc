// StepSpeed: what a step costs, from steps that ran.
#include "engine/step_speed.h"

#include <gtest/gtest.h>

namespace longspan::engine {
namespace {

TEST(StepSpeed, KnowsNothingAtFirst) {
  StepSpeed speed;
  EXPECT_EQ(speed.prefill_tokens_per_ms(500), 0);
  speed.add(/*num_prefill_tokens=*/0, /*num_decode_seqs=*/1, /*ms=*/10);
  EXPECT_EQ(speed.prefill_tokens_per_ms(500), 0) << "nor from decode rows alone";
  speed.add(63, 0, 10);
  EXPECT_EQ(speed.prefill_tokens_per_ms(500), 0) << "nor from the tail of a prompt";
}

// Somebody decodes from the start, so that no step ever prefills alone.
TEST(StepSpeed, LearnsFromMixedSteps) {
  StepSpeed speed;
  speed.add(0, 8, 20);
  speed.add(1000, 8, 120);  // 20 ms of decode rows and 0.1 ms a token
  EXPECT_DOUBLE_EQ(speed.prefill_tokens_per_ms(500) * 500, 4800) << "480 ms are left to the prompt";
  EXPECT_EQ(speed.prefill_tokens_per_second(), 0);
  speed.add(1000, 0, 120);
  EXPECT_DOUBLE_EQ(speed.prefill_tokens_per_second(), 1000 / 0.120);
}

TEST(StepSpeed, SlowerIsBelievedSoonerThanFaster) {
  StepSpeed slower, faster;
  for (StepSpeed* speed : {&slower, &faster}) speed->add(1000, 0, 100);
  slower.add(1000, 0, 200);  // a long context
  faster.add(1000, 0, 50);
  EXPECT_LT(slower.prefill_tokens_per_ms(500), 10 / 1.7);
  EXPECT_LT(faster.prefill_tokens_per_ms(500), 10 / 0.8);
  for (int i = 0; i < 20; ++i) faster.add(1000, 0, 50);
  EXPECT_NEAR(faster.prefill_tokens_per_ms(500), 20, 0.1);
}

TEST(StepSpeed, DecodeRowsSlowerThanTheLimitLeaveAMinimum) {
  StepSpeed speed;
  speed.add(0, 8, 900);
  speed.add(1000, 8, 1000);
  EXPECT_GT(speed.prefill_tokens_per_ms(500), 0);
  EXPECT_LE(speed.prefill_tokens_per_ms(500) * 500, 500);
}

}  // namespace
}  // namespace longspan::engine
