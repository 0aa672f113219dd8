#include "schedule/step_budget.h"

#include <gtest/gtest.h>

namespace longspan::schedule {
namespace {

TEST(StepBudget, AChunkEndsAtThePromptsEndOrOnTheGrid) {
  const StepBudget budget(300);
  EXPECT_EQ(budget.chunk(0, 300), 300);
  EXPECT_EQ(budget.chunk(0, 301), 256);
  EXPECT_EQ(budget.chunk(256, 557), 256);
  EXPECT_EQ(budget.chunk(10, 1000), 246);  // to 256: a hit of reuse_decoded may lie off the grid
  EXPECT_EQ(budget.chunk(50, 1000), 270);  // to 320
}

TEST(StepBudget, LessThanAGridChunkIsForTailsOnly) {
  const StepBudget budget(63);
  EXPECT_EQ(budget.chunk(0, 64), 0);
  EXPECT_EQ(budget.chunk(0, 63), 63);
  EXPECT_EQ(budget.chunk(128, 140), 12);
}

TEST(StepBudget, DecodeRowsAndTheStallLimitBothCount) {
  StepBudget budget(256, {.ms = 100, .token_ms = 0.75});  // 133 tokens
  EXPECT_EQ(budget.chunk(0, 1000), 128);
  for (int i = 0; i < 150; ++i) budget.take_decode();
  EXPECT_EQ(budget.left(), 106);
  EXPECT_EQ(budget.chunk(0, 1000), 64);
  budget.take_chunk(0, 1000, 64);
  EXPECT_EQ(budget.left(), 42);
  EXPECT_EQ(budget.chunk(0, 1000), 0);
}

TEST(StepBudget, ChunksShrinkAsTheirContextGrows) {
  const PrefillLimit limit{.ms = 100, .token_ms = 0.1, .pair_ms = 1e-4};
  EXPECT_EQ(StepBudget(4096, limit).chunk(0, 100'000), 704);     // 704 tokens: 70 + 25 ms
  EXPECT_EQ(StepBudget(4096, limit).chunk(6400, 100'000), 128);  // 128: 13 + 83 ms
  EXPECT_EQ(StepBudget(4096, limit).chunk(64'000, 100'000), 64) << "never less than one grid chunk";
}

TEST(StepBudget, TimeThatOneChunkTookIsGone) {
  const PrefillLimit limit{.ms = 100, .token_ms = 0.1};
  StepBudget budget(4096, limit);
  EXPECT_EQ(budget.chunk(0, 640), 640);
  budget.take_chunk(0, 640, 640);
  EXPECT_EQ(budget.chunk(0, 10'000), 320);  // of the 36 ms that are left
  budget.take_chunk(0, 10'000, 320);
  EXPECT_EQ(budget.chunk(0, 10'000), 0) << "the minimum is for the first chunk of a step";
}

TEST(StepBudget, NoChunkEndsBeyondWhatIsKnown) {
  const PrefillLimit limit{.ms = 100, .token_ms = 0.001, .max_end = 200};
  EXPECT_EQ(StepBudget(4096, limit).chunk(0, 10'000), 192);
  EXPECT_EQ(StepBudget(4096, limit).chunk(192, 10'000), 64) << "but for one grid chunk";
}

TEST(PrefillLimit, TokensWithinATimeCostNoMoreThanIt) {
  for (const double pair_ms : {0.0, 1e-7, 1e-3}) {
    const PrefillLimit limit{.ms = 1, .token_ms = 0.01, .pair_ms = pair_ms};
    for (const int64_t context : {0, 100, 100'000}) {
      for (const double ms : {0.5, 50.0, 5000.0}) {
        const int64_t tokens = limit.tokens_within(ms, context);
        EXPECT_LE(limit.cost(context, tokens), ms * (1 + 1e-9));
        EXPECT_GT(limit.cost(context, tokens + 1), ms);
      }
    }
  }
  EXPECT_EQ(PrefillLimit{}.tokens_within(0, 0), 0);
  EXPECT_GT(PrefillLimit{}.tokens_within(1, 0), 1'000'000) << "what costs nothing always fits";
}

TEST(StepBudget, AQuarterIsKeptForShortPrompts) {
  StepBudget budget(1024);
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
  StepBudget budget(64);
  budget.close_decodes();
  budget.keep_room_for_short();
  EXPECT_FALSE(budget.keeps_room());
  EXPECT_EQ(budget.chunk(0, 5000), 64);
}

}  // namespace
}  // namespace longspan::schedule
