// InputBatch: the steady way and the general way prepare the same integers, whatever the scheduler does.
#include "engine/input_batch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "support/small_plan.h"

namespace longspan::engine {
namespace {

using testing::small_plan;

constexpr AttentionTraits kTraits{.head_dim = 16, .num_q_heads = 1, .num_kv_heads = 1, .page_tokens = 64};
const auto no_logits = [](schedule::SeqId) { return false; };

// One way of preparing inputs.
struct Way {
  Way(const cache::PagePlan& plan, bool steady)
      : dispatcher({.steady_decode_inputs = steady}, kTraits), batch(plan, 512, 4, dispatcher) {
    dispatcher.start_counting();
    batch.start_counting();
  }
  const model::StepInputs& build(const schedule::StepPlan& step, schedule::Scheduler& scheduler) {
    return batch.build(step, scheduler, no_logits, nullptr);
  }
  Dispatcher dispatcher;
  InputBatch batch;
};

// Requests come, are cancelled, preempted and replayed at random; now and then one is alone for a while.
class RandomSteps : public ::testing::TestWithParam<cache::Layout> {};

TEST_P(RandomSteps, BothWaysGiveTheSameIntegers) {
  const cache::PagePlan plan = small_plan(GetParam());
  schedule::Scheduler scheduler(
      plan, {.num_pages = GetParam() == cache::Layout::kUnified ? 16 : 10, .num_state_slots = 4},
      {.max_num_seqs = 4, .max_num_batched_tokens = 512, .max_model_len = 600});
  Way steady(plan, true), general(plan, false);
  std::mt19937 random(11);
  schedule::SeqId next_id = 1;
  int64_t num_steps = 0;
  while (num_steps < 20000) {
    if (random() % (scheduler.has_work() ? 150 : 2) == 0) {
      std::vector<int32_t> prompt(random() % 8 == 0 ? 1 : 1 + random() % 300);
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 1000);
      scheduler.add(
          {.id = next_id++, .prompt = prompt, .max_new_tokens = 1 + static_cast<int64_t>(random() % 250)});
    }
    if (random() % 200 == 0) scheduler.cancel(static_cast<schedule::SeqId>(next_id - 1 - random() % 3));
    const schedule::StepPlan& step = scheduler.plan_step();
    if (step.empty()) continue;
    ++num_steps;
    ASSERT_EQ(first_difference(steady.build(step, scheduler), general.build(step, scheduler)), "")
        << "step " << num_steps;
    std::vector<schedule::Sampled> sampled;
    for (const schedule::PlannedSeq& seq : step.seqs)
      if (seq.sample) sampled.push_back({.id = seq.id, .token = static_cast<int32_t>(random() % 1000)});
    scheduler.complete(sampled);
  }
  EXPECT_EQ(steady.dispatcher.counters().hits, general.dispatcher.counters().hits);
  EXPECT_GT(steady.batch.counters().num_dispatched, 1000);
  EXPECT_EQ(general.batch.counters().num_dispatched, 0);
  EXPECT_FALSE(general.batch.counters().reserved);
  for (size_t i = 0; i + 1 < kNumSteadyConditions; ++i)  // the last one is the next test's
    EXPECT_GT(steady.batch.counters().misses[i], 0) << steady_condition(i);
  EXPECT_GT(scheduler.stats().num_replays, 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, RandomSteps,
                         ::testing::Values(cache::Layout::kUnified, cache::Layout::kSplit),
                         [](const auto& layout) { return std::string(cache::to_string(layout.param)); });

// A stale state: the same sequence, but not one token further.
TEST(InputBatch, AJumpTakesTheGeneralWay) {
  const cache::PagePlan plan = small_plan(cache::Layout::kSplit);
  schedule::Scheduler scheduler(plan, {.num_pages = 16, .num_state_slots = 4}, {.max_num_seqs = 4});
  std::vector<int32_t> prompt(300);
  std::iota(prompt.begin(), prompt.end(), 0);
  scheduler.add({.id = 7, .prompt = prompt, .max_new_tokens = 10});
  scheduler.plan_step();
  Way steady(plan, true), general(plan, false);
  const auto decode_at = [&](int32_t position, schedule::SeqId id) {
    schedule::StepPlan step;
    step.seqs = {{.id = id,
                  .q_len = 1,
                  .context_len = position,
                  .sample = true,
                  .tokens = std::span<const int32_t>(prompt).subspan(static_cast<size_t>(position), 1)}};
    step.num_decode_seqs = step.num_tokens = 1;
    EXPECT_EQ(first_difference(steady.build(step, scheduler), general.build(step, scheduler)), "")
        << position;
    return steady.batch.counters().num_dispatched;
  };
  EXPECT_EQ(decode_at(62, 7), 0);
  EXPECT_EQ(decode_at(63, 7), 1);
  EXPECT_EQ(decode_at(64, 7), 2) << "over a page's end";
  EXPECT_EQ(decode_at(66, 7), 2);
  EXPECT_EQ(steady.batch.counters().misses[kNumSteadyConditions - 1], 1);
  EXPECT_EQ(decode_at(67, 7), 3);
  EXPECT_EQ(decode_at(68, 8), 3) << "another sequence";
  const std::vector<schedule::Sampled> sampled = {{.id = 7, .token = 1}};
  scheduler.complete(sampled);
}

// The comparison itself can fail.
TEST(InputBatch, ADifferenceIsNamed) {
  const std::vector<int32_t> a = {1, 2, 3}, b = {1, 5, 3};
  const auto view = [](const std::vector<int32_t>& values) {
    return TensorView(const_cast<int32_t*>(values.data()), DType::kI32, {3});
  };
  model::StepInputs x, y;
  x.groups.resize(1);
  y.groups.resize(1);
  x.groups[0].slots = view(a);
  y.groups[0].slots = view(a);
  EXPECT_EQ(first_difference(x, y), "");
  y.groups[0].slots = view(b);
  EXPECT_EQ(first_difference(x, y), "slots of group 0: [1] is 2 and 5");
}

}  // namespace
}  // namespace longspan::engine
