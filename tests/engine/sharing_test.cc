// Many requests over one small cache: preemption, prefix hits and layouts change no token of any answer.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/fixture.h"

namespace longspan {
namespace {

using testing::Answer;

constexpr int64_t kAnswer = 100;  // long enough to grow past a page

std::vector<int32_t> document() { return testing::Reference("tiny").at(8).prompt; }  // 4,039 tokens

// Prompts of mixed length, some of them with a common beginning.
std::vector<std::vector<int32_t>> mixed_prompts(int count) {
  const std::vector<int32_t> text = document();
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < count; ++i) {
    const size_t length = 1 + random() % (i % 4 == 0 ? 1500 : 200);
    const size_t begin = i % 2 == 0 ? 0 : random() % 2000;
    prompts.emplace_back(text.begin() + static_cast<std::ptrdiff_t>(begin),
                         text.begin() + static_cast<std::ptrdiff_t>(begin + length));
  }
  return prompts;
}

engine::EngineOptions options() {
  return {.model = testing::model_dir("tiny"),
          .max_model_len = 2048,
          .max_num_seqs = 16,
          .max_num_batched_tokens = 256};
}

std::vector<std::vector<int32_t>> solo_answers(const std::vector<std::vector<int32_t>>& prompts) {
  engine::EngineOptions alone = options();
  alone.max_num_seqs = 1;
  engine::Engine engine(alone);
  std::vector<std::vector<int32_t>> answers;
  for (const auto& prompt : prompts) answers.push_back(testing::generate(engine, prompt, kAnswer).ids);
  return answers;
}

struct Setting {
  const char* name;
  cache::Layout layout;
  int64_t alignment;
  int64_t min_page_tokens;
  int64_t budget;
  bool prefix_caching;
};

class Sharing : public ::testing::TestWithParam<Setting> {};

TEST_P(Sharing, AnswersEqualSoloRuns) {
  static const auto prompts = mixed_prompts(32);
  static const auto want = solo_answers(prompts);
  const Setting& setting = GetParam();
  engine::EngineOptions shared = options();
  shared.pages = {.alignment = setting.alignment,
                  .layout = setting.layout,
                  .prefix_caching = setting.prefix_caching,
                  .min_page_tokens = setting.min_page_tokens};
  shared.max_num_batched_tokens = setting.budget;
  // Every state slot, but pages for little more than one sequence of full length: sixteen cannot all stay.
  const cache::MemoryPlan plan = engine::make_plan(shared, engine::Purpose::kExplain).memory;
  shared.cache_bytes =
      static_cast<size_t>(plan.num_state_slots * plan.slot_bytes + plan.num_pages * plan.page_bytes * 5 / 64);
  engine::Engine engine(shared);
  std::vector<engine::Response> responses;
  for (const auto& prompt : prompts)
    responses.push_back(engine.submit({.prompt = prompt, .max_new_tokens = kAnswer, .ignore_eos = true}));
  int64_t num_cached = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Answer got = testing::collect(responses[i]);
    EXPECT_EQ(got.ids, want[i]) << "request " << i << " of " << prompts[i].size() << " tokens";
    num_cached += got.last.num_cached;
  }
  const engine::EngineStatus status = engine.status();
  std::printf("  %s: %lld preemptions, %lld cached tokens\n", setting.name,
              static_cast<long long>(status.schedule.num_replays + status.schedule.num_swap_outs),
              static_cast<long long>(num_cached));
  // Large pages leave no room for checkpoints in so small a pool; PrefixHits below sees unified hits.
  if (setting.prefix_caching && setting.layout == cache::Layout::kSplit) {
    EXPECT_GT(num_cached, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Sharing,
    ::testing::Values(Setting{"unified_64", cache::Layout::kUnified, 64, 0, 256, false},
                      Setting{"unified_784", cache::Layout::kUnified, 16, 784, 256, false},
                      Setting{"unified_832_cached", cache::Layout::kUnified, 64, 832, 64, true},
                      Setting{"split_64", cache::Layout::kSplit, 64, 0, 4096, false},
                      Setting{"split_64_cached", cache::Layout::kSplit, 64, 0, 256, true}),
    [](const auto& setting) { return setting.param.name; });

// Eight answers that each grow by pages of which there are too few: some must give way, and no token changes.
struct PreemptionSetting {
  const char* name;
  cache::Layout layout;
  size_t prompt_len;
  int64_t answer_len;
  int64_t num_pages;
  int64_t num_swap_pages;  // 0: replays
};

class Preemption : public ::testing::TestWithParam<PreemptionSetting> {};

std::vector<std::vector<int32_t>> preempted_prompts(const PreemptionSetting& setting) {
  const std::vector<int32_t> text = document();
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 8; ++i) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(200 * i);
    prompts.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(setting.prompt_len + i));
  }
  return prompts;
}

// Made once for each layout: its settings have the same prompts.
const std::vector<std::vector<int32_t>>& unpreempted_answers(const PreemptionSetting& setting,
                                                             const engine::EngineOptions& options) {
  static std::map<cache::Layout, std::vector<std::vector<int32_t>>> of_layout;
  std::vector<std::vector<int32_t>>& answers = of_layout[setting.layout];
  if (!answers.empty()) return answers;
  engine::Engine alone(options);
  EXPECT_EQ(alone.info().swap.num_pages, 0) << "no need where everybody fits";
  for (const auto& prompt : preempted_prompts(setting))
    answers.push_back(testing::generate(alone, prompt, setting.answer_len).ids);
  EXPECT_EQ(alone.status().schedule.num_replays + alone.status().schedule.num_swap_outs, 0);
  return answers;
}

TEST_P(Preemption, AnswersEqualSoloRuns) {
  const PreemptionSetting& setting = GetParam();
  const std::vector<std::vector<int32_t>> prompts = preempted_prompts(setting);
  engine::EngineOptions shared = options();
  shared.max_num_seqs = 8;
  shared.pages = {.alignment = 64, .layout = setting.layout};
  const std::vector<std::vector<int32_t>>& want = unpreempted_answers(setting, shared);
  const cache::MemoryPlan plan = engine::make_plan(shared, engine::Purpose::kExplain).memory;
  const int64_t slot_bytes = plan.slot_bytes * plan.num_state_slots;
  shared.cache_bytes = static_cast<size_t>(slot_bytes + plan.page_bytes * setting.num_pages);
  // Split: slots take a quarter.
  shared.swap_bytes = static_cast<size_t>(plan.page_bytes * setting.num_swap_pages +
                                          (setting.num_swap_pages > 0 ? 4 * slot_bytes : 0));
  shared.max_model_len = 1024;
  engine::Engine engine(shared);
  std::vector<engine::Response> responses;
  for (const auto& prompt : prompts)
    responses.push_back(
        engine.submit({.prompt = prompt, .max_new_tokens = setting.answer_len, .ignore_eos = true}));
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(testing::collect(responses[i]).ids, want[i]) << "request " << i;
  const schedule::SchedulerStats stats = engine.status().schedule;
  std::printf("  %s: %lld swapped, %lld replayed\n", setting.name,
              static_cast<long long>(stats.num_swap_outs), static_cast<long long>(stats.num_replays));
  if (setting.num_swap_pages == 0) {
    EXPECT_EQ(stats.num_swap_outs, 0);
    EXPECT_GT(stats.num_replays, 0);
  } else {
    EXPECT_GT(stats.num_swap_outs, 0);
    EXPECT_EQ(stats.num_replays, 0);
    EXPECT_EQ(stats.num_replayed_tokens, 0);
  }
  EXPECT_EQ(engine.status().pages.num_free, engine.status().pages.num_pages);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Preemption,
    ::testing::Values(PreemptionSetting{"unified_replayed", cache::Layout::kUnified, 430, 480, 30, 0},
                      PreemptionSetting{"unified_swapped", cache::Layout::kUnified, 430, 480, 30, 60},
                      PreemptionSetting{"split_replayed", cache::Layout::kSplit, 100, 200, 24, 0},
                      PreemptionSetting{"split_swapped", cache::Layout::kSplit, 100, 200, 24, 60}),
    [](const auto& setting) { return setting.param.name; });

// Decode rounds otherwise than prefill, so an answer may differ; but it must work, and the work must be
// saved.
TEST(PrefixHits, DecodedTokensAreReusedWhereThatIsAskedFor) {
  for (cache::Layout layout : {cache::Layout::kUnified, cache::Layout::kSplit}) {
    engine::EngineOptions reusing = options();
    reusing.pages = {.alignment = 64, .layout = layout, .prefix_caching = true};
    reusing.reuse_decoded = true;
    engine::Engine engine(reusing);
    std::vector<int32_t> turn = document();
    turn.resize(150);
    const Answer first = testing::generate(engine, turn, 100);
    turn.insert(turn.end(), first.ids.begin(), first.ids.end());
    turn.push_back(7);
    const Answer second = testing::generate(engine, turn, 20);
    EXPECT_EQ(second.ids.size(), 20u);
    EXPECT_EQ(second.last.num_cached, 249) << cache::to_string(layout);
  }
}

// A prompt twice, and with a suffix at cuts around page borders: a hit gives the bits of a cold run.
TEST(PrefixHits, LogprobsEqualAColdRun) {
  const std::vector<int32_t> text = document();
  const auto answer = [](engine::Engine& engine, std::vector<int32_t> prompt) {
    engine::Response response = engine.submit({.prompt = std::move(prompt),
                                               .max_new_tokens = 6,
                                               .sampling = {.num_logprobs = 20},
                                               .ignore_eos = true});
    std::vector<engine::TokenOutput> tokens;
    engine::ResponseUpdate update;
    do {
      update = response.wait(std::chrono::minutes(5));
      for (engine::TokenOutput& token : update.tokens) tokens.push_back(std::move(token));
    } while (!update.done);
    return std::pair(std::move(tokens), update.num_cached);
  };
  for (cache::Layout layout : {cache::Layout::kUnified, cache::Layout::kSplit}) {
    engine::EngineOptions cold_options = options();
    cold_options.pages = {.alignment = 64, .layout = layout};
    cold_options.max_num_seqs = 4;
    engine::EngineOptions warm_options = cold_options;
    warm_options.pages.prefix_caching = true;
    engine::Engine cold(cold_options);
    engine::Engine warm(warm_options);
    const int64_t page = warm.info().page_plan.page_tokens;
    const std::vector<int32_t> first(text.begin(), text.begin() + 1200);
    answer(warm, first);
    int64_t num_hits = 0;
    for (int64_t cut : {int64_t{1}, int64_t{63}, int64_t{64}, page - 1, page, page + 1, page + 64,
                        2 * page - 1, 2 * page, 2 * page + 65, int64_t{1199}, int64_t{1200}}) {
      if (cut > 1200) continue;
      std::vector<int32_t> prompt(first.begin(), first.begin() + cut);
      prompt.insert(prompt.end(), text.begin() + 3000, text.begin() + 3040);
      const auto [got, num_cached] = answer(warm, prompt);
      const auto want = answer(cold, prompt).first;
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].token, want[i].token) << "cut " << cut;
        for (size_t j = 0; j < want[i].top.size(); ++j)
          ASSERT_EQ(got[i].top[j].logprob, want[i].top[j].logprob) << "cut " << cut << ", token " << i;
      }
      num_hits += num_cached > 0;
    }
    EXPECT_GT(num_hits, 0) << cache::to_string(layout);
    EXPECT_GT(answer(warm, first).second, 1000) << cache::to_string(layout);  // the very same prompt again
  }
}

}  // namespace
}  // namespace longspan
