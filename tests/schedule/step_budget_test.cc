#include "schedule/step_budget.h"

#include <gtest/gtest.h>

namespace longspan::schedule {
namespace {

TEST(StepBudget, AChunkEndsAtThePromptsEndOrOnTheGrid) {
  const StepBudget budget(300, 300);
  EXPECT_EQ(budget.chunk(0, 300), 300);
  EXPECT_EQ(budget.chunk(0, 301), 256);
  EXPECT_EQ(budget.chunk(256, 557), 256);
  EXPECT_EQ(budget.chunk(10, 1000), 246);  // to 256: a hit of reuse_decoded may lie off the grid
  EXPECT_EQ(budget.chunk(50, 1000), 270);  // to 320
}

TEST(StepBudget, LessThanAGridChunkIsForTailsOnly) {
  const StepBudget budget(63, 63);
  EXPECT_EQ(budget.chunk(0, 64), 0);
  EXPECT_EQ(budget.chunk(0, 63), 63);
  EXPECT_EQ(budget.chunk(128, 140), 12);
}

TEST(StepBudget, DecodeRowsAndTheStallLimitBothCount) {
  StepBudget budget(256, 128);
  EXPECT_EQ(budget.chunk(0, 1000), 128);
  for (int i = 0; i < 150; ++i) budget.take_decode();
  EXPECT_EQ(budget.left(), 106);
  EXPECT_EQ(budget.chunk(0, 1000), 64);
  budget.take_chunk(0, 1000, 64);
  EXPECT_EQ(budget.left(), 42);
  EXPECT_EQ(budget.chunk(0, 1000), 0);
}

TEST(StepBudget, AQuarterIsKeptForShortPrompts) {
  StepBudget budget(1024, 1024);
  budget.close_decodes();
  EXPECT_TRUE(budget.is_short(0, 256));
  EXPECT_FALSE(budget.is_short(0, 257));
  budget.keep_room_for_short();
  EXPECT_EQ(budget.chunk(0, 5000), 768);
  EXPECT_EQ(budget.chunk(0, 200), 200);
  budget.take_chunk(0, 5000, 768);
  EXPECT_EQ(budget.chunk(0, 5000), 0);
  budget.take_chunk(0, 200, 200);
  EXPECT_TRUE(budget.keeps_room());
  budget.give_kept_room();
  EXPECT_EQ(budget.chunk(768, 5000), 0);  // 56 are left: no grid chunk
}

TEST(StepBudget, ATinyBudgetKeepsNothing) {
  StepBudget budget(64, 64);
  budget.close_decodes();
  budget.keep_room_for_short();
  EXPECT_FALSE(budget.keeps_room());
  EXPECT_EQ(budget.chunk(0, 5000), 64);
}

}  // namespace
}  // namespace longspan::schedule
