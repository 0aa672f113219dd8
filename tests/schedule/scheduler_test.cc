#include "schedule/scheduler.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "core/error.h"
#include "schedule/count_allocations.h"
#include "schedule/simulated_engine.h"

namespace longspan::schedule {
namespace {

Tokens prompt_of(int64_t num_tokens, int32_t first = 0) {
  Tokens tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A prompt whose answer has all of its max_new_tokens.
Tokens talkative_prompt(int64_t num_tokens, int64_t max_new_tokens, int32_t first = 0) {
  Tokens prompt = prompt_of(num_tokens, first);
  while (std::ssize(solo_answer(prompt, max_new_tokens, /*has_state=*/true)) < max_new_tokens) ++prompt[0];
  return prompt;
}

Request request(SeqId id, Tokens prompt, int64_t max_new_tokens, int32_t priority = 0) {
  return {.id = id,
          .prompt = std::move(prompt),
          .max_new_tokens = max_new_tokens,
          .priority = priority,
          .cache_salt = ""};
}

std::vector<int32_t> q_lens(const StepPlan& plan) {
  std::vector<int32_t> lengths;
  for (const PlannedSeq& seq : plan.seqs) lengths.push_back(seq.q_len);
  return lengths;
}

std::vector<SeqId> ids(const StepPlan& plan) {
  std::vector<SeqId> result;
  for (const PlannedSeq& seq : plan.seqs) result.push_back(seq.id);
  return result;
}

void expect_solo_answer(SimulatedEngine& engine, SeqId id, const Tokens& prompt, int64_t max_new_tokens) {
  EXPECT_TRUE(engine.is_finished(id)) << id;
  EXPECT_EQ(engine.answer(id), solo_answer(prompt, max_new_tokens, /*has_state=*/true)) << id;
}

// ---- Admission.

TEST(Scheduler, RefusesWhatCanNeverRun) {
  SimulatedEngine engine({}, {.num_pages = 8}, {.max_num_seqs = 1, .max_model_len = 1000, .max_waiting = 1});
  Scheduler& scheduler = engine.scheduler();
  EXPECT_EQ(scheduler.add(request(1, {}, 5)), Admission::kEmpty);
  EXPECT_EQ(scheduler.add(request(1, {1}, 0)), Admission::kEmpty);
  EXPECT_EQ(scheduler.add(request(1, prompt_of(900), 101)), Admission::kTooLong);
  EXPECT_EQ(scheduler.add(request(1, prompt_of(900), INT64_MAX)), Admission::kTooLong);
  EXPECT_EQ(scheduler.add(request(1, prompt_of(400), 10)), Admission::kNeverFits);  // 7 pages and 2 of state
  EXPECT_EQ(scheduler.add(request(1, prompt_of(300), 84)), Admission::kAccepted);
  EXPECT_EQ(scheduler.add(request(2, prompt_of(10), 1)), Admission::kAccepted);
  EXPECT_EQ(scheduler.add(request(3, prompt_of(10), 1)), Admission::kQueueFull);
  engine.begin_step();
  engine.finish_step();
  EXPECT_EQ(scheduler.add(request(1, prompt_of(10), 1)), Admission::kDuplicate);
}

TEST(Scheduler, OptionsThatCannotWorkAreRefused) {
  const auto make = [](const SchedulerOptions& options) { SimulatedEngine({}, {.num_pages = 8}, options); };
  EXPECT_THROW(make({.max_num_batched_tokens = 63}), Error);
  EXPECT_THROW(make({.max_num_seqs = 65, .max_num_batched_tokens = 64}), Error);
  EXPECT_THROW(make({.max_num_seqs = 0}), Error);
  EXPECT_THROW(make({.max_model_len = 1}), Error);
  EXPECT_NO_THROW(make({.max_num_seqs = 64, .max_num_batched_tokens = 64}));
}

TEST(Scheduler, AnIdlePlanIsEmptyAndNeedsNoComplete) {
  SimulatedEngine engine({}, {.num_pages = 8}, {});
  EXPECT_TRUE(engine.scheduler().plan_step().empty());
  EXPECT_TRUE(engine.scheduler().plan_step().empty());
  EXPECT_FALSE(engine.scheduler().has_work());
}

// ---- Chunked prefill.

TEST(Scheduler, ALongPromptRunsInChunksWithATail) {
  SimulatedEngine engine({}, {.num_pages = 600}, {.max_num_batched_tokens = 4096, .max_model_len = 40000});
  engine.scheduler().add(request(1, prompt_of(32768 + 100), 2));
  std::vector<std::pair<int32_t, int32_t>> chunks;  // q, kv
  while (engine.scheduler().find(1)->in_prefill()) {
    ASSERT_TRUE(engine.begin_step());
    chunks.emplace_back(engine.plan().seqs[0].q_len,
                        engine.plan().seqs[0].context_len + engine.plan().seqs[0].q_len);
    EXPECT_EQ(engine.plan().seqs[0].sample, chunks.size() == 9);
    engine.finish_step();
  }
  ASSERT_EQ(chunks.size(), 9u);
  for (int32_t i = 0; i < 8; ++i)
    EXPECT_EQ(chunks[static_cast<size_t>(i)], std::make_pair(4096, 4096 * (i + 1)));
  EXPECT_EQ(chunks.back(), std::make_pair(100, 32868));
  engine.run_all();
  expect_solo_answer(engine, 1, prompt_of(32868), 2);
}

TEST(Scheduler, DecodeRowsGoFirstAndPrefillFillsTheRest) {
  SimulatedEngine engine({}, {.num_pages = 100}, {.max_num_batched_tokens = 256});
  engine.scheduler().add(request(1, talkative_prompt(50, 50), 50));
  engine.scheduler().add(request(2, talkative_prompt(60, 50, 100), 50));
  engine.step();
  engine.scheduler().add(request(3, prompt_of(1000, 200), 5));
  engine.begin_step();
  EXPECT_EQ(engine.plan().num_decode_seqs, 2);
  EXPECT_EQ(q_lens(engine.plan()), (std::vector<int32_t>{1, 1, 192}));  // 254 left: down to the grid
  engine.finish_step();
}

TEST(Scheduler, OneTokenPromptIsStillAPrefill) {
  SimulatedEngine engine({}, {.num_pages = 8}, {});
  engine.scheduler().add(request(1, {5}, 3));
  engine.begin_step();
  EXPECT_TRUE(engine.plan().seqs[0].is_prefill);
  EXPECT_EQ(engine.plan().num_decode_seqs, 0);
  engine.finish_step();
  engine.run_all();
  expect_solo_answer(engine, 1, {5}, 3);
}

TEST(Scheduler, ChunksShrinkWhileOthersDecode) {
  SimulatedEngine engine({}, {.num_pages = 200}, {.max_num_batched_tokens = 4096});
  engine.scheduler().add(request(1, talkative_prompt(10, 100), 100));
  const PrefillLimit limit{.ms = 100, .token_ms = 1.0 / 3};  // 300 tokens
  engine.begin_step(limit);
  engine.finish_step();
  engine.scheduler().add(request(2, prompt_of(5000), 5));
  engine.begin_step(limit);
  EXPECT_EQ(q_lens(engine.plan()), (std::vector<int32_t>{1, 256}));
  engine.finish_step();
  engine.begin_step({.ms = 1, .token_ms = 0.1});
  EXPECT_EQ(q_lens(engine.plan()), (std::vector<int32_t>{1, 64})) << "never less than one grid chunk";
  engine.finish_step();
  engine.begin_step();
  EXPECT_EQ(q_lens(engine.plan()), (std::vector<int32_t>{1, 4032})) << "no estimate, no limit";
  engine.finish_step();
}

TEST(Scheduler, APromptAloneIsNotHeldBackForDecodes) {
  SimulatedEngine engine({}, {.num_pages = 200}, {.max_num_batched_tokens = 4096});
  engine.scheduler().add(request(1, prompt_of(5000), 5));
  engine.begin_step({.ms = 100, .token_ms = 1});
  EXPECT_EQ(q_lens(engine.plan()), (std::vector<int32_t>{4096}));
  engine.finish_step();
}

// A budget that decode rows fill is shared in turn: neither side starves.
TEST(Scheduler, DecodesAndPrefillTakeTurnsInASmallBudget) {
  SimulatedEngine engine({}, {.num_pages = 100}, {.max_num_seqs = 4, .max_num_batched_tokens = 64});
  for (SeqId id = 1; id <= 3; ++id)
    engine.scheduler().add(request(id, prompt_of(10, static_cast<int32_t>(100 * id)), 60));
  engine.step();
  engine.scheduler().add(request(4, prompt_of(300), 5));
  int num_chunks = 0;
  for (int i = 0; i < 12; ++i) {
    engine.begin_step();
    num_chunks += engine.plan().seqs.back().is_prefill;
    engine.finish_step();
  }
  EXPECT_EQ(num_chunks, 5);  // of 64 tokens, every other step
  engine.run_all();
}

TEST(Scheduler, AShortPromptRunsBesideALongOne) {
  SimulatedEngine engine({}, {.num_pages = 1000}, {.max_num_batched_tokens = 1024});
  engine.scheduler().add(request(1, prompt_of(20000), 5));
  engine.step();
  engine.scheduler().add(request(2, prompt_of(10000), 5));  // long too: is let in, and waits
  engine.scheduler().add(request(3, prompt_of(200), 5));
  engine.scheduler().add(request(4, prompt_of(100), 5));
  engine.begin_step();
  EXPECT_EQ(ids(engine.plan()), (std::vector<SeqId>{1, 3})) << "a quarter holds one of the two";
  EXPECT_EQ(q_lens(engine.plan()), (std::vector<int32_t>{768, 200}));
  engine.finish_step();
  engine.begin_step();
  EXPECT_EQ(ids(engine.plan()), (std::vector<SeqId>{3, 1, 4}));
  EXPECT_EQ(q_lens(engine.plan()), (std::vector<int32_t>{1, 896, 100}))
      << "what a short one leaves of the quarter goes back";
  engine.finish_step();
  engine.run_all();
  expect_solo_answer(engine, 1, prompt_of(20000), 5);
  expect_solo_answer(engine, 2, prompt_of(10000), 5);
}

TEST(Scheduler, AStreamOfShortPromptsTakesAQuarterFromALongOneAtMost) {
  SimulatedEngine engine({}, {.num_pages = 1000}, {.max_num_batched_tokens = 1024});
  engine.scheduler().add(request(0, prompt_of(30000), 1));
  int num_steps = 0;
  for (SeqId id = 1; !engine.is_finished(0); ++num_steps) {
    for (int i = 0; i < 3; ++i) engine.scheduler().add(request(id++, prompt_of(250), 1));
    engine.step();
  }
  EXPECT_LE(num_steps, 30000 / 768 + 1);
}

TEST(Scheduler, WhatWasKeptForAPrefillThatIsGoneGoesToTheDecodes) {
  SimulatedEngine engine({}, {.num_pages = 100}, {.max_num_seqs = 4, .max_num_batched_tokens = 64});
  engine.scheduler().add(request(1, talkative_prompt(10, 60), 60));
  engine.step();
  engine.scheduler().add(request(2, prompt_of(300), 5));
  engine.begin_step();
  EXPECT_EQ(ids(engine.plan()), std::vector<SeqId>{1});
  engine.finish_step();
  engine.scheduler().cancel(2);
  EXPECT_TRUE(engine.begin_step());
  EXPECT_EQ(ids(engine.plan()), std::vector<SeqId>{1});
  engine.finish_step();
}

// ---- Order.

TEST(Scheduler, FirstComeFirstServed) {
  SimulatedEngine engine({}, {.num_pages = 100}, {.max_num_seqs = 1});
  for (SeqId id : {5, 3, 9}) engine.scheduler().add(request(id, prompt_of(10), 1));
  for (SeqId id : {5, 3, 9}) {
    engine.begin_step();
    EXPECT_EQ(ids(engine.plan()), std::vector<SeqId>{id});
    engine.finish_step();
  }
}

TEST(Scheduler, SmallerPrioritiesRunFirst) {
  SimulatedEngine engine({}, {.num_pages = 100}, {.max_num_seqs = 1});
  engine.scheduler().add(request(1, prompt_of(10), 1, /*priority=*/1));
  engine.scheduler().add(request(2, prompt_of(10), 1, /*priority=*/0));
  engine.scheduler().add(request(3, prompt_of(10), 1, /*priority=*/-1));
  for (SeqId id : {3, 2, 1}) {
    engine.begin_step();
    EXPECT_EQ(ids(engine.plan()), std::vector<SeqId>{id});
    engine.finish_step();
  }
}

TEST(Scheduler, AStreamOfUrgentRequestsDoesNotStarveAPatientOne) {
  SimulatedEngine engine({}, {.num_pages = 100}, {.max_num_seqs = 1});
  engine.scheduler().add(request(0, prompt_of(10), 1, /*priority=*/1));
  SeqId next = 1;
  for (; !engine.is_finished(0) && next < 3 * kPriorityStep; ++next) {
    engine.scheduler().add(request(next, prompt_of(10), 1));
    engine.step();
  }
  EXPECT_TRUE(engine.is_finished(0));
  EXPECT_NEAR(static_cast<double>(next), static_cast<double>(kPriorityStep), 2);
}

TEST(Scheduler, AShortRequestDoesNotOvertakeALongOneThatWaitsForPages) {
  SimulatedEngine engine({}, {.num_pages = 12}, {});
  engine.scheduler().add(request(1, prompt_of(300), 20));  // 5 pages, 2 of state
  engine.step();
  engine.scheduler().add(request(2, prompt_of(400), 20));  // 7 and 2: not yet
  engine.scheduler().add(request(3, prompt_of(10), 20));
  engine.begin_step();
  EXPECT_EQ(ids(engine.plan()), std::vector<SeqId>{1});
  engine.finish_step();
  engine.run_all();
  expect_solo_answer(engine, 2, prompt_of(400), 20);
}

// ---- Rows.

TEST(Scheduler, AThousandDecodeStepsInsideOnePageCopyNoTable) {
  SimulatedEngine engine({.page_tokens = 2048}, {.num_pages = 8}, {});
  engine.scheduler().add(request(1, talkative_prompt(10, 1200), 1200));
  engine.step();
  const int64_t copies = engine.scheduler().table(0).num_copies() + engine.scheduler().table(1).num_copies();
  for (int i = 0; i < 1000; ++i) {
    engine.begin_step();
    ASSERT_EQ(engine.plan().seqs.size(), 1u);
    engine.finish_step();
  }
  EXPECT_EQ(engine.scheduler().table(0).num_copies() + engine.scheduler().table(1).num_copies(), copies);
}

// Nor do the steps that take a new page.
TEST(Scheduler, SteadyDecodeAllocatesNoMemory) {
  Scheduler scheduler(plan_of({}), {.num_pages = 100}, {.max_num_seqs = 4});
  for (SeqId id = 0; id < 4; ++id) scheduler.add(request(id, prompt_of(50, static_cast<int32_t>(id)), 500));
  const auto step = [&] {
    std::array<Sampled, 4> sampled;
    int num_sampled = 0;
    for (const PlannedSeq& seq : scheduler.plan_step().seqs)
      sampled[static_cast<size_t>(num_sampled++)] = {.id = seq.id, .token = 7};
    scheduler.complete(std::span(sampled).first(static_cast<size_t>(num_sampled)));
  };
  step();
  int64_t worst = 0;
  for (int i = 0; i < 400; ++i) {
    const int64_t before = num_allocations();
    step();
    worst = std::max(worst, num_allocations() - before);
  }
  EXPECT_EQ(worst, 0);
}

TEST(Scheduler, StreamsKeepTheirRowsWhenOthersLeave) {
  SimulatedEngine engine({}, {.num_pages = 100}, {});
  for (SeqId id = 1; id <= 3; ++id)
    engine.scheduler().add(request(id, prompt_of(20, static_cast<int32_t>(70 * id)), 40));
  engine.step();
  engine.scheduler().cancel(1);
  engine.begin_step();
  EXPECT_EQ(ids(engine.plan()), (std::vector<SeqId>{3, 2}));  // 3 fills the hole, 2 stays
  engine.finish_step();
}

// ---- Cancelling.

TEST(Scheduler, CancelFreesEverythingWhereverTheSequenceIs) {
  SimulatedEngine engine({}, {.num_pages = 20}, {.max_num_seqs = 2, .max_num_batched_tokens = 128});
  Scheduler& scheduler = engine.scheduler();
  const cache::PagePool& pool = scheduler.memory().pages();
  scheduler.add(request(1, prompt_of(500), 20));
  scheduler.add(request(2, prompt_of(100), 20));
  EXPECT_TRUE(scheduler.cancel(2));  // waiting
  engine.step();
  ASSERT_TRUE(scheduler.find(1)->in_prefill());
  EXPECT_TRUE(scheduler.cancel(1));  // in the middle of its prefill
  EXPECT_FALSE(scheduler.cancel(1));
  EXPECT_EQ(pool.num_free(), 20);
  EXPECT_TRUE(scheduler.plan_step().empty());

  scheduler.add(request(3, prompt_of(100), 20));
  engine.step();
  EXPECT_TRUE(scheduler.cancel(3));  // decoding
  EXPECT_EQ(pool.num_free(), 20);
  EXPECT_FALSE(scheduler.has_work());
}

TEST(Scheduler, CancelDuringAStepTakesEffectAtItsEnd) {
  SimulatedEngine engine({}, {.num_pages = 20}, {.max_num_batched_tokens = 128});
  Scheduler& scheduler = engine.scheduler();
  scheduler.add(request(1, prompt_of(100), 20));
  engine.begin_step();
  EXPECT_TRUE(scheduler.cancel(1));
  EXPECT_FALSE(scheduler.cancel(1));
  EXPECT_LT(scheduler.memory().pages().num_free(), 20) << "the device may be writing";
  EXPECT_TRUE(engine.finish_step().empty());
  EXPECT_EQ(scheduler.memory().pages().num_free(), 20);
  EXPECT_EQ(scheduler.find(1), nullptr);
}

// ---- Preemption. Two requests that together outgrow the pool: 8 pages, states take 2 each.

class PreemptionTest : public testing::Test {
 protected:
  void run(const cache::CacheCapacity& capacity, cache::Layout layout) {
    SimulatedEngine engine({.layout = layout}, capacity, {});
    const Tokens a = talkative_prompt(60, 120, 10), b = talkative_prompt(60, 120, 500);
    engine.scheduler().add(request(1, a, 120));
    engine.scheduler().add(request(2, b, 120));
    engine.run_all();
    expect_solo_answer(engine, 1, a, 120);
    expect_solo_answer(engine, 2, b, 120);
    stats_ = engine.scheduler().stats();
    EXPECT_EQ(engine.scheduler().memory().pages().num_free(), capacity.num_pages);
    EXPECT_EQ(engine.scheduler().memory().host_pages().num_free(), capacity.num_host_pages);
  }
  SchedulerStats stats_;
};

TEST_F(PreemptionTest, SwapsToHostMemoryAndResumes) {
  run({.num_pages = 8, .num_host_pages = 8}, cache::Layout::kUnified);
  EXPECT_GT(stats_.num_swap_outs, 0);
  EXPECT_EQ(stats_.num_replays, 0);
  EXPECT_EQ(stats_.num_replayed_tokens, 0);
}

TEST_F(PreemptionTest, ReplaysWithoutHostMemory) {
  run({.num_pages = 8}, cache::Layout::kUnified);
  EXPECT_EQ(stats_.num_swap_outs, 0);
  EXPECT_GT(stats_.num_replays, 0);
  EXPECT_GT(stats_.num_replayed_tokens, 60) << "the known answer is decoded again, not prefilled";
}

TEST_F(PreemptionTest, SplitLayoutSwapsPagesAndSlots) {
  run({.num_pages = 4, .num_state_slots = 2, .num_host_pages = 4, .num_host_slots = 1},
      cache::Layout::kSplit);
  EXPECT_GT(stats_.num_swap_outs, 0);
}

TEST_F(PreemptionTest, ReplaysWhenHostMemoryIsTooSmallForTheState) {
  run({.num_pages = 4, .num_state_slots = 2, .num_host_pages = 4}, cache::Layout::kSplit);
  EXPECT_EQ(stats_.num_swap_outs, 0);
  EXPECT_GT(stats_.num_replays, 0);
}

TEST(Scheduler, TheLastInOrderGivesItsPlaceUp) {
  SimulatedEngine engine({}, {.num_pages = 9, .num_host_pages = 20}, {});
  engine.scheduler().add(request(1, talkative_prompt(60, 100), 100, /*priority=*/1));
  engine.scheduler().add(request(2, talkative_prompt(60, 100, 500), 100));
  int num_steps = 0;
  while (engine.scheduler().stats().num_swapped == 0 && num_steps++ < 200) engine.step();
  EXPECT_EQ(engine.scheduler().find(1)->status, SeqStatus::kSwapped);
  EXPECT_EQ(engine.scheduler().find(2)->status, SeqStatus::kRunning);
  engine.scheduler().cancel(1);
  EXPECT_EQ(engine.scheduler().memory().host_pages().num_free(), 20);
  engine.run_all();
}

// ---- Prefix caching.

TEST(PrefixCaching, TheSamePromptAgainComputesOnlyItsTail) {
  SimulatedEngine engine({.prefix_caching = true}, {.num_pages = 60}, {.min_checkpoint_tokens = 64});
  const Tokens prompt = prompt_of(300);
  engine.scheduler().add(request(1, prompt, 5));
  engine.run_all();
  engine.scheduler().add(request(2, prompt, 5));
  engine.begin_step();
  EXPECT_EQ(engine.plan().seqs[0].context_len, 256);
  EXPECT_EQ(engine.plan().seqs[0].q_len, 44);
  EXPECT_EQ(engine.plan().copies.size(), 2u) << "a state of two groups; every page is full and shared";
  engine.finish_step();
  engine.run_all();
  expect_solo_answer(engine, 2, prompt, 5);
  EXPECT_EQ(engine.num_cached(1), 0);
  EXPECT_EQ(engine.num_cached(2), 256);
}

TEST(PrefixCaching, EveryCutOfAPromptContinuesAsIfCold) {
  for (const cache::Layout layout : {cache::Layout::kUnified, cache::Layout::kSplit}) {
    for (const int64_t page_tokens : {16, 48, 64, 112, 128}) {
      SimulatedEngine engine({.layout = layout, .page_tokens = page_tokens, .prefix_caching = true},
                             {.num_pages = 6000, .num_state_slots = 1000}, {.min_checkpoint_tokens = 64});
      const Tokens shared = prompt_of(2 * 128 + 7);
      engine.scheduler().add(request(0, shared, 3));
      engine.run_all();
      for (int64_t cut = 1; cut < std::ssize(shared); ++cut) {
        Tokens prompt(shared.begin(), shared.begin() + cut);
        for (int32_t i = 0; i < 70; ++i) prompt.push_back(5000 + static_cast<int32_t>(cut) + i);
        engine.scheduler().add(request(cut, prompt, 3));
        engine.run_all();
        expect_solo_answer(engine, cut, prompt, 3);
      }
      EXPECT_GT(engine.scheduler().memory().index()->stats().num_hits, 5) << page_tokens;
    }
  }
}

TEST(PrefixCaching, CheckpointsLieOnPageBoundariesOfTheGridAndAtTheLastGridPoint) {
  const auto counts_of = [](int64_t page_tokens) {
    SimulatedEngine engine({.page_tokens = page_tokens, .prefix_caching = true}, {.num_pages = 100},
                           {.min_checkpoint_tokens = 64});
    engine.scheduler().add(request(1, prompt_of(1000), 2));
    engine.begin_step();
    std::vector<int32_t> counts;
    for (const CheckpointWrite& write : engine.plan().checkpoints[1]) counts.push_back(write.num_tokens);
    EXPECT_EQ(engine.plan().checkpoints[2].size(), counts.size());
    engine.finish_step();
    engine.run_all();
    return counts;
  };
  EXPECT_EQ(counts_of(208), (std::vector<int32_t>{832, 960}));                 // lcm(208, 64) = 832
  EXPECT_EQ(counts_of(192), (std::vector<int32_t>{192, 384, 576, 768, 960}));  // 960 is both
  EXPECT_EQ(counts_of(256), (std::vector<int32_t>{256, 512, 768, 960}));
}

TEST(PrefixCaching, APartlyFilledPageIsCopied) {
  SimulatedEngine engine({.page_tokens = 256, .prefix_caching = true}, {.num_pages = 60}, {});
  Tokens prompt = prompt_of(200);
  engine.scheduler().add(request(1, prompt, 60));
  engine.run_all();
  Tokens longer = prompt;
  for (int32_t i = 0; i < 30; ++i) longer.push_back(9000 + i);
  engine.scheduler().add(request(2, longer, 40));
  engine.begin_step();
  EXPECT_EQ(engine.plan().seqs[0].context_len, 192);
  EXPECT_EQ(engine.plan().copies.size(), 3u);
  EXPECT_EQ(engine.plan().copies[0].group, 0);
  engine.finish_step();
  engine.run_all();
  expect_solo_answer(engine, 2, longer, 40);
  engine.scheduler().add(request(3, prompt, 60));  // and the source is as it was
  engine.run_all();
  expect_solo_answer(engine, 3, prompt, 60);
}

TEST(PrefixCaching, TheNextTurnPrefillsWhatDecodeProduced) {
  for (const bool reuse_decoded : {false, true}) {
    SimulatedEngine engine({.prefix_caching = true}, {.num_pages = 60}, {.reuse_decoded = reuse_decoded});
    Tokens turn = prompt_of(100);
    engine.scheduler().add(request(1, turn, 150));
    engine.run_all();
    const Tokens answer = engine.answer(1);
    turn.insert(turn.end(), answer.begin(), answer.end());
    turn.push_back(77);
    engine.scheduler().add(request(2, turn, 20));
    engine.begin_step();
    const int64_t computed = 100 + std::ssize(answer) - 1;
    EXPECT_EQ(engine.plan().seqs[0].context_len, reuse_decoded ? computed : 64);
    engine.finish_step();
    engine.run_all();
    if (!reuse_decoded) expect_solo_answer(engine, 2, turn, 20);
  }
}

TEST(PrefixCaching, WorksForDenseModels) {
  SimulatedEngine engine({.page_tokens = 64, .prefix_caching = true, .has_state = false}, {.num_pages = 60},
                         {});
  const Tokens prompt = prompt_of(300);
  engine.scheduler().add(request(1, prompt, 5));
  engine.run_all();
  engine.scheduler().add(request(2, prompt, 5));
  engine.run_all();
  EXPECT_EQ(engine.num_cached(2), 256);
  EXPECT_EQ(engine.answer(2), solo_answer(prompt, 5, /*has_state=*/false));
}

TEST(PrefixCaching, ACancelledPrefillLeavesItsWorkForTheRetry) {
  SimulatedEngine engine({.prefix_caching = true}, {.num_pages = 60},
                         {.max_num_batched_tokens = 256, .min_checkpoint_tokens = 64});
  engine.scheduler().add(request(1, prompt_of(1000), 5));
  engine.step();
  engine.step();
  engine.scheduler().cancel(1);
  engine.scheduler().add(request(2, prompt_of(1000), 5));
  engine.begin_step();
  EXPECT_EQ(engine.plan().seqs[0].context_len, 512);
  engine.finish_step();
  engine.run_all();
  expect_solo_answer(engine, 2, prompt_of(1000), 5);
}

TEST(PrefixCaching, ARequestThatDoesNotShareTakesAndLeavesNothing) {
  SimulatedEngine engine({.prefix_caching = true}, {.num_pages = 60}, {.reuse_decoded = true});
  Request alone = request(1, prompt_of(300), 5);
  alone.share_prefix = false;
  engine.scheduler().add(alone);
  engine.run_all();
  EXPECT_EQ(engine.scheduler().memory().index()->stats().num_nodes, 0);
  EXPECT_EQ(engine.scheduler().memory().pages().num_free(), 60);
  engine.scheduler().add(request(2, prompt_of(300), 5));
  engine.run_all();
  alone.id = 3;
  engine.scheduler().add(alone);
  engine.run_all();
  EXPECT_EQ(engine.num_cached(3), 0);
  expect_solo_answer(engine, 3, prompt_of(300), 5);
}

// The cache fills what is free; it never keeps a request from running.
TEST(PrefixCaching, CachedPagesGiveWayToRequests) {
  SimulatedEngine engine({.prefix_caching = true}, {.num_pages = 9}, {.min_checkpoint_tokens = 64});
  for (SeqId id = 1; id <= 20; ++id) {
    const Tokens prompt =
        prompt_of(400, static_cast<int32_t>(id % 3));  // 7 pages and 2 of state: all there is
    ASSERT_EQ(engine.scheduler().add(request(id, prompt, 20)), Admission::kAccepted);
    engine.run_all();
    expect_solo_answer(engine, id, prompt, 20);
  }
}

TEST(PrefixCaching, SharedPrefixOfManyQuestionsIsComputedOnce) {
  SimulatedEngine engine({.page_tokens = 128, .prefix_caching = true}, {.num_pages = 400},
                         {.max_model_len = 40000});
  const Tokens document = prompt_of(20000);
  int64_t before = 0;
  for (SeqId id = 0; id < 10; ++id) {
    Tokens prompt = document;
    for (int32_t i = 0; i < 40; ++i) prompt.push_back(100000 + 1000 * static_cast<int32_t>(id) + i);
    engine.scheduler().add(request(id, prompt, 3));
    engine.run_all();
    expect_solo_answer(engine, id, prompt, 3);
    const int64_t work = engine.scheduler().stats().num_prefill_tokens - before;
    before += work;
    EXPECT_LE(work, id == 0 ? 20040 : 40 + 512)
        << "new tokens, and those since the last checkpoint of the document";
  }
}

}  // namespace
}  // namespace longspan::schedule
