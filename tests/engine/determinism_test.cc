// At temperature 0 an answer depends on its prompt alone: not on chunks, pages, layout, batch mates, threads
// or cancelled neighbours.
#include <gtest/gtest.h>

#include "support/fixture.h"

namespace longspan {
namespace {

using testing::Answer;

engine::EngineOptions tiny(DType dtype) {
  return {.model = testing::model_dir("tiny"), .dtype = dtype, .max_model_len = 8192, .max_num_seqs = 8};
}

// A prompt of the fixture, cut to a length that is no multiple of anything.
std::vector<int32_t> prompt(int index, size_t num_tokens) {
  std::vector<int32_t> ids = testing::Reference("tiny").at(index).prompt;
  ids.resize(std::min(num_tokens, ids.size()));
  return ids;
}

void expect_same(const Answer& got, const Answer& want, const std::string& what) {
  EXPECT_EQ(got.ids, want.ids) << what;
  ASSERT_EQ(got.prompt_logits.size(), want.prompt_logits.size()) << what;
  for (size_t i = 0; i < want.prompt_logits.size(); ++i)
    ASSERT_EQ(got.prompt_logits[i], want.prompt_logits[i]) << what << ", logits of position " << i;
}

class Determinism : public ::testing::TestWithParam<DType> {};

TEST_P(Determinism, ChunksPagesLayoutAndThreads) {
  const std::vector<int32_t> ids = prompt(8, 2123);
  engine::EngineOptions options = tiny(GetParam());
  options.max_num_batched_tokens = 4096;  // one chunk
  const Answer want = [&] {
    engine::Engine engine(options);
    return testing::generate(engine, ids, 24, ids.size());
  }();
  struct Variant {
    const char* what;
    int64_t budget;
    int64_t alignment;
    int64_t min_page_tokens;
    cache::Layout layout;
    int threads;
  };
  const Variant variants[] = {
      {"chunks of 64", 64, 16, 0, cache::Layout::kUnified, 0},
      {"chunks of 192, split layout, pages of 16", 192, 16, 0, cache::Layout::kSplit, 0},
      {"chunks of 448, three threads", 448, 64, 0, cache::Layout::kUnified, 3},
      {"chunks of 1000, pages of 784, one thread", 1000, 16, 784, cache::Layout::kUnified, 1},
      {"chunks of 1024, pages of 832", 1024, 64, 832, cache::Layout::kUnified, 0},
  };
  for (const Variant& variant : variants) {
    options.max_num_batched_tokens = variant.budget;
    options.pages.alignment = variant.alignment;
    options.pages.min_page_tokens = variant.min_page_tokens;
    options.pages.layout = variant.layout;
    options.num_threads = variant.threads;
    engine::Engine engine(options);
    if (variant.min_page_tokens > 0) {
      EXPECT_EQ(engine.info().page_plan.page_tokens, variant.min_page_tokens);
    }
    expect_same(testing::generate(engine, ids, 24, ids.size()), want, variant.what);
  }
}

TEST_P(Determinism, BatchMatesAndCancelledNeighbours) {
  engine::EngineOptions options = tiny(GetParam());
  options.max_num_batched_tokens = 256;
  std::vector<std::vector<int32_t>> prompts;
  for (size_t length : {1, 5, 63, 64, 65, 200, 517, 1001}) prompts.push_back(prompt(8, length));
  std::vector<Answer> solo;
  {
    engine::Engine engine(options);
    for (const auto& ids : prompts) solo.push_back(testing::generate(engine, ids, 40));
  }
  engine::Engine engine(options);
  std::vector<engine::Response> responses;
  for (const auto& ids : prompts) {
    responses.push_back(engine.submit({.prompt = ids, .max_new_tokens = 40, .ignore_eos = true}));
    // A neighbour that leaves at once, and one that leaves while it decodes.
    engine.submit({.prompt = ids, .max_new_tokens = 40, .ignore_eos = true});
  }
  std::optional<engine::Response> leaver =
      engine.submit({.prompt = prompts[2], .max_new_tokens = 1000, .ignore_eos = true});
  while (leaver->wait(std::chrono::seconds(60)).tokens.empty()) {
  }
  leaver.reset();
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(testing::collect(responses[i]).ids, solo[i].ids) << "prompt " << i;
  // Everybody is gone: no page is held.
  while (engine.status().schedule.num_running + engine.status().schedule.num_waiting > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(engine.status().pages.num_free, engine.status().pages.num_pages);
}

// Quantised weights have one way for decode rows and one for prompt rows; nothing else may matter.
TEST(QuantisedAnswers, ChunksBatchMatesAndThreads) {
  for (const char* fixture : {"quant_awq_g128", "quant_ct_g32_asym", "quant_fp8_block128"}) {
    engine::EngineOptions options{.model = testing::model_dir(fixture),
                                  .dtype = DType::kBF16,
                                  .max_model_len = 1024,
                                  .max_num_seqs = 8};
    std::vector<std::vector<int32_t>> prompts;
    for (const int length : {1, 17, 65, 333}) {
      prompts.emplace_back();
      for (int i = 0; i < length; ++i) prompts.back().push_back((i * 37 + 11 * length) % 512);
    }
    std::vector<Answer> solo;
    {
      engine::Engine engine(options);
      for (const auto& ids : prompts) solo.push_back(testing::generate(engine, ids, 40, ids.size()));
    }
    options.max_num_batched_tokens = 64;
    options.num_threads = 3;
    engine::Engine engine(options);
    for (size_t i = 0; i < prompts.size(); ++i)
      expect_same(testing::generate(engine, prompts[i], 40, prompts[i].size()), solo[i], fixture);
    std::vector<engine::Response> responses;
    for (const auto& ids : prompts)
      responses.push_back(engine.submit({.prompt = ids, .max_new_tokens = 40, .ignore_eos = true}));
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_EQ(testing::collect(responses[i]).ids, solo[i].ids) << fixture << ", prompt " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Determinism, ::testing::Values(DType::kBF16, DType::kF32),
                         [](const auto& dtype) {
                           return dtype.param == DType::kBF16 ? "bfloat16" : "float32";
                         });

}  // namespace
}  // namespace longspan
