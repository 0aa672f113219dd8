// What a step costs, from steps that ran.
#include "engine/step_speed.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "schedule/step_budget.h"

namespace longspan::engine {
namespace {

using schedule::PrefillLimit;
using schedule::StepBudget;

// One chunk of one prompt.
StepWork chunk(int64_t context, int64_t q_len, int64_t num_decode_seqs = 0) {
  return {.num_prefill_tokens = q_len,
          .num_pairs =
              static_cast<double>(q_len) * (static_cast<double>(context) + static_cast<double>(q_len) / 2),
          .max_end = context + q_len,
          .num_decode_seqs = num_decode_seqs};
}

StepWork decodes(int64_t num_seqs) { return {.num_decode_seqs = num_seqs}; }

TEST(StepSpeed, KnowsNothingAtFirst) {
  StepSpeed speed;
  EXPECT_EQ(speed.prefill_limit(500).ms, 0);
  speed.add(decodes(1), /*ms=*/10);
  EXPECT_EQ(speed.prefill_limit(500).ms, 0) << "nor from decode rows alone";
  speed.add(chunk(0, 63), 10);
  EXPECT_EQ(speed.prefill_limit(500).ms, 0) << "nor from the tail of a prompt";
  speed.add(chunk(0, 64), 10);
  EXPECT_EQ(speed.prefill_limit(0).ms, 0) << "no limit was asked for";
  EXPECT_GT(speed.prefill_limit(500).ms, 0);
}

// Somebody decodes from the start, so that no step ever prefills alone.
TEST(StepSpeed, LearnsFromMixedSteps) {
  StepSpeed speed;
  speed.add(decodes(8), 20);
  speed.add(chunk(0, 1000, 8), 120);  // 20 ms of decode rows and 0.1 ms a token
  const PrefillLimit limit = speed.prefill_limit(500);
  EXPECT_DOUBLE_EQ(limit.ms, 480) << "what decode rows leave to the prompt";
  EXPECT_DOUBLE_EQ(limit.cost(0, 1000), 100);
  EXPECT_EQ(speed.prefill_tokens_per_second(), 0);
  speed.add(chunk(0, 1000), 120);
  EXPECT_DOUBLE_EQ(speed.prefill_tokens_per_second(), 1000 / 0.120);
}

TEST(StepSpeed, SlowerIsBelievedSoonerThanFaster) {
  StepSpeed slower, faster;
  for (StepSpeed* speed : {&slower, &faster}) speed->add(chunk(0, 1000), 100);
  slower.add(chunk(0, 1000), 200);
  faster.add(chunk(0, 1000), 50);
  EXPECT_GT(slower.prefill_limit(500).cost(0, 1000), 170);
  EXPECT_GT(faster.prefill_limit(500).cost(0, 1000), 60);
  for (int i = 0; i < 200; ++i) faster.add(chunk(0, 1000), 50);
  EXPECT_NEAR(faster.prefill_limit(500).cost(0, 1000), 50, 2);
}

TEST(StepSpeed, DecodeRowsSlowerThanTheLimitLeaveAMinimum) {
  StepSpeed speed;
  speed.add(decodes(8), 900);
  speed.add(chunk(0, 1000, 8), 1000);
  EXPECT_DOUBLE_EQ(speed.prefill_limit(500).ms, 50);
}

TEST(StepSpeed, TellsTokensFromWhatTheySee) {
  StepSpeed speed;
  const auto cost = [](int64_t context, double q) {
    return q * 0.02 + q * 3e-6 * (static_cast<double>(context) + q / 2);
  };
  for (int64_t at = 0; at < 8192; at += 512) speed.add(chunk(at, 512), cost(at, 512));
  const PrefillLimit limit = speed.prefill_limit(500);
  EXPECT_NEAR(limit.token_ms, 0.02, 2e-4);
  EXPECT_NEAR(limit.pair_ms, 3e-6, 3e-8);
  EXPECT_EQ(limit.max_end, 8192 * 3 / 2) << "of what lies beyond, little is known";
}

// A machine whose steps take decode_ms + token_ms * q + pair_ms * q * (context + q / 2), times a jitter.
struct Machine {
  double decode_ms;
  double token_ms;
  double pair_ms;
  double jitter = 0;
};

struct Gaps {
  double longest_ms = 0;
  int64_t num_steps = 0;
};

// Prompts of `num_prompt` tokens, one after the other, beside eight streams, as the engine runs them: after a
// warm-up of 65 tokens and some steps of the streams alone.
Gaps run(const Machine& machine, double limit_ms, int64_t num_prompt, int num_prompts = 1) {
  constexpr int64_t kStepTokens = 4096;
  constexpr int64_t kStreams = 8;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(1 - machine.jitter, 1 + machine.jitter);
  StepSpeed speed;
  const auto step = [&](const StepWork& work) {
    const double ms =
        noise(random) * (machine.decode_ms + machine.token_ms * static_cast<double>(work.num_prefill_tokens) +
                         machine.pair_ms * work.num_pairs);
    speed.add(work, ms);
    return ms;
  };
  step(chunk(0, 65));
  for (int i = 0; i < 40; ++i) step(decodes(kStreams));
  Gaps gaps;
  for (int i = 0; i < num_prompts; ++i) {
    for (int64_t at = 0; at < num_prompt;) {
      StepBudget budget(kStepTokens, speed.prefill_limit(limit_ms));
      for (int64_t k = 0; k < kStreams; ++k) budget.take_decode();
      budget.close_decodes();
      const int64_t q_len = budget.chunk(at, num_prompt);
      gaps.longest_ms = std::max(gaps.longest_ms, step(chunk(at, q_len, kStreams)));
      ++gaps.num_steps;
      at += q_len;
    }
  }
  return gaps;
}

// Where attention is next to nothing, a tenth, half and nearly all of a step in the middle of the prompt.
TEST(StepSpeed, StreamsWaitNoLongerThanTwiceTheLimitFromTheFirstChunkOn) {
  for (const double attention : {1e-3, 0.1, 1.0, 30.0}) {
    for (const double token_ms : {0.002, 0.01, 0.05}) {
      const Machine machine{.decode_ms = 5, .token_ms = token_ms, .pair_ms = attention * token_ms / 16384};
      for (const double limit_ms : {50.0, 200.0}) {
        const Gaps gaps = run(machine, limit_ms, 32768);
        const double grid_ms =
            machine.decode_ms + 64 * token_ms * (1 + 2 * attention);  // no chunk is smaller
        EXPECT_LT(gaps.longest_ms, std::max(1.5 * limit_ms, 1.01 * grid_ms))
            << "attention " << attention << ", token " << token_ms << ", limit " << limit_ms;
      }
    }
  }
}

TEST(StepSpeed, AnUnsteadyMachineStaysBelowTwiceTheLimitToo) {
  const Machine machine{.decode_ms = 5, .token_ms = 0.01, .pair_ms = 2e-6, .jitter = 0.25};
  EXPECT_LT(run(machine, 50, 32768, /*num_prompts=*/8).longest_ms, 100);
}

// The limit is used, not only kept: a prompt takes little longer than with chunks that fill it exactly.
TEST(StepSpeed, ChunksFillTheLimit) {
  const Machine machine{.decode_ms = 5, .token_ms = 0.05, .pair_ms = 2e-6};
  const double all_ms = 32768 * (machine.token_ms + machine.pair_ms * 16384);
  const auto fewest = static_cast<int64_t>(all_ms / 45);
  EXPECT_LT(run(machine, 50, 32768).num_steps, fewest + fewest / 4 + 20);
}

}  // namespace
}  // namespace longspan::engine
