// An FP8 cache through the whole engine: the same bits however a prompt is cut, paged, shared or preempted;
// the bundled model's tasks at long context; scales of the checkpoint; what saturates is counted.
#include <gtest/gtest.h>

#include <unistd.h>

#include "io/safetensors.h"
#include "support/fixture.h"

namespace longspan {
namespace {

using testing::Answer;

engine::EngineOptions tiny_fp8(DType dtype = DType::kBF16) {
  return {.model = testing::model_dir("tiny"),
          .dtype = dtype,
          .max_model_len = 2048,
          .max_num_seqs = 8,
          .kv_dtype = DType::kF8E4M3};
}

std::vector<int32_t> text_of(size_t begin, size_t num_tokens) {
  const std::vector<int32_t> text = testing::Reference("tiny").at(8).prompt;  // 4,039 tokens
  const auto from = text.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(num_tokens)};
}

TEST(Fp8CacheEngine, ChunksPagesPathsAndLayoutsChangeNoBit) {
  const std::vector<int32_t> ids = text_of(0, 1123);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    engine::EngineOptions options = tiny_fp8(dtype);
    const Answer want = [&] {
      engine::Engine engine(options);
      EXPECT_EQ(engine.info().page_plan.kv_dtype, DType::kF8E4M3);
      return testing::generate(engine, ids, 24, ids.size());
    }();
    struct Variant {
      int64_t budget;
      int64_t alignment;
      int64_t min_page_tokens;
      cache::Layout layout;
      bool page_contiguous;
    };
    for (const Variant& variant : {Variant{64, 16, 0, cache::Layout::kSplit, true},
                                   Variant{448, 64, 832, cache::Layout::kUnified, false},
                                   Variant{1000, 16, 784, cache::Layout::kUnified, true}}) {
      options.max_num_batched_tokens = variant.budget;
      options.pages = {.alignment = variant.alignment,
                       .layout = variant.layout,
                       .min_page_tokens = variant.min_page_tokens};
      options.dispatch.page_contiguous_decode = variant.page_contiguous;
      engine::Engine engine(options);
      const Answer got = testing::generate(engine, ids, 24, ids.size());
      EXPECT_EQ(got.ids, want.ids) << "chunks of " << variant.budget;
      EXPECT_EQ(got.prompt_logits, want.prompt_logits) << "chunks of " << variant.budget;
    }
  }
}

// A page holds twice the tokens of a bfloat16 cache for the same state.
TEST(Fp8CacheEngine, PagesFollow) {
  engine::EngineOptions options = tiny_fp8();
  const auto page_tokens = [&] { return engine::make_plan(options, engine::Purpose::kExplain).page_plan; };
  const cache::PagePlan fp8 = page_tokens();
  options.kv_dtype.reset();
  EXPECT_EQ(fp8.kv_bytes_per_token * 2, page_tokens().kv_bytes_per_token);
  EXPECT_GT(fp8.page_tokens, page_tokens().page_tokens);
}

TEST(Fp8CacheEngine, APrefixHitGivesTheBitsOfAColdRun) {
  engine::EngineOptions options = tiny_fp8();
  options.pages = {.alignment = 64, .layout = cache::Layout::kSplit};
  engine::Engine cold(options);
  options.pages.prefix_caching = true;
  engine::Engine warm(options);
  const std::vector<int32_t> first = text_of(0, 1200);
  testing::generate(warm, first, 2);
  for (const size_t cut : {64, 517, 1199, 1200}) {
    std::vector<int32_t> prompt(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(cut));
    const std::vector<int32_t> end = text_of(3000, 40);
    prompt.insert(prompt.end(), end.begin(), end.end());
    const auto logprobs = [&](engine::Engine& engine) {
      engine::Response response = engine.submit(
          {.prompt = prompt, .max_new_tokens = 4, .sampling = {.num_logprobs = 5}, .ignore_eos = true});
      std::vector<std::pair<int32_t, float>> tokens;
      engine::ResponseUpdate update;
      do {
        update = response.wait(std::chrono::minutes(5));
        for (const engine::TokenOutput& token : update.tokens)
          for (const auto& top : token.top) tokens.emplace_back(top.token, top.logprob);
      } while (!update.done);
      return std::pair(tokens, update.num_cached);
    };
    const auto [got, num_cached] = logprobs(warm);
    EXPECT_EQ(got, logprobs(cold).first) << cut;
    if (cut > 512) {
      EXPECT_GT(num_cached, 0) << cut;
    }
  }
}

TEST(Fp8CacheEngine, PreemptionChangesNoToken) {
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 6; ++i) prompts.push_back(text_of(200 * i, 100 + i));
  engine::EngineOptions options = tiny_fp8();
  options.pages = {.alignment = 64, .layout = cache::Layout::kSplit};
  std::vector<std::vector<int32_t>> want;
  {
    engine::Engine alone(options);
    for (const auto& prompt : prompts) want.push_back(testing::generate(alone, prompt, 120).ids);
  }
  const cache::MemoryPlan plan = engine::make_plan(options, engine::Purpose::kExplain).memory;
  const int64_t slot_bytes = plan.slot_bytes * plan.num_state_slots;
  options.cache_bytes = static_cast<size_t>(slot_bytes + 18 * plan.page_bytes);
  options.max_model_len = 1024;
  for (const bool swaps : {false, true}) {
    options.swap_bytes = swaps ? static_cast<size_t>(40 * plan.page_bytes + 4 * slot_bytes) : 0;
    engine::Engine engine(options);
    std::vector<engine::Response> responses;
    for (const auto& prompt : prompts)
      responses.push_back(engine.submit({.prompt = prompt, .max_new_tokens = 120, .ignore_eos = true}));
    for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(testing::collect(responses[i]).ids, want[i]) << i;
    const schedule::SchedulerStats stats = engine.status().schedule;
    EXPECT_GT(swaps ? stats.num_swap_outs : stats.num_replays, 0);
  }
}

// Access codes looked up in documents, an arithmetic question, a tool call: the answers of float32 up to the
// end of the turn, from logits near its own.
void expect_tasks_to_pass(int64_t min_prompt, int64_t max_prompt) {
  engine::Engine engine({.model = testing::model_dir("tiny"),
                         .dtype = DType::kBF16,
                         .max_num_seqs = 1,
                         .kv_dtype = DType::kF8E4M3});
  const testing::Reference reference("tiny");
  const int32_t end_of_turn = 4066;
  for (int i = 0; i < reference.num_cases(); ++i) {
    const testing::ReferenceCase want = reference.at(i);
    if (std::ssize(want.prompt) < min_prompt || std::ssize(want.prompt) > max_prompt) continue;
    const auto end = std::find(want.greedy_ids.begin(), want.greedy_ids.end(), end_of_turn);
    const Answer got =
        testing::generate(engine, want.prompt, end - want.greedy_ids.begin(), want.last_logits.size());
    EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), want.greedy_ids.begin())) << "prompt " << i;
    const double error = testing::relative_l2(got.prompt_logits, want.last_logits);
    EXPECT_LT(error, 0.05) << "prompt " << i;
    std::printf("  prompt %2d  %6zu tokens  relative L2 against float32 %.2e\n", i, want.prompt.size(),
                error);
  }
  EXPECT_EQ(engine.status().num_kv_saturated, 0);
  EXPECT_EQ(engine.status().num_non_finite, 0);
}

TEST(Fp8CacheEngine, TheBundledModelsTasksPass) { expect_tasks_to_pass(0, 20000); }

TEST(Fp8CacheEngine, TheLongestOfThemPasses) {
  if (!testing::long_tests()) GTEST_SKIP() << "a minute: LONGSPAN_LONG_TESTS";
  expect_tasks_to_pass(20001, 1 << 20);
}

// A copy of a fixture with further tensors.
class ScaledModel : public ::testing::Test {
 protected:
  ScaledModel() : dir_(std::filesystem::temp_directory_path() / fmt::format("longspan_fp8_{}", ::getpid())) {
    std::filesystem::create_directories(dir_);
    std::filesystem::copy_file(testing::fixture_dir("dense_qwen3") / "config.json", dir_ / "config.json");
  }
  ~ScaledModel() override { std::filesystem::remove_all(dir_); }

  void write(const std::vector<std::pair<std::string, std::vector<float>>>& scales) const {
    const io::TensorStore store(testing::fixture_dir("dense_qwen3"));
    std::vector<io::NamedTensor> tensors;
    for (const std::string& name : store.names()) tensors.push_back({name, store.view(name)});
    std::vector<Buffer> buffers;
    for (const auto& [name, values] : scales) {
      buffers.emplace_back(DType::kF32, Shape{static_cast<Index>(values.size())});
      std::copy(values.begin(), values.end(), buffers.back().view().as<float>());
      tensors.push_back({name, buffers.back().view()});
    }
    io::write_safetensors(dir_ / "model.safetensors", tensors);
  }
  Answer answer(std::optional<DType> kv_dtype, int64_t* num_saturated = nullptr) const {
    engine::Engine engine(
        {.model = dir_, .dtype = DType::kF32, .max_model_len = 256, .max_num_seqs = 1, .kv_dtype = kv_dtype});
    const Answer answer = testing::generate(engine, testing::Reference("dense_qwen3").at(1).prompt, 4, 4);
    if (num_saturated != nullptr) *num_saturated = engine.status().num_kv_saturated;
    return answer;
  }
  std::filesystem::path dir_;
};

TEST_F(ScaledModel, ScalesAreFoundUnderEveryName) {
  write({});
  const Answer plain = answer(std::nullopt), unscaled = answer(DType::kF8E4M3);
  // Powers of two change nothing but what lies at the ends of the range; others change every code.
  std::vector<std::vector<float>> seen;
  for (const char* name : {"self_attn.k_scale", "self_attn.attn.k_scale", "self_attn.k_proj.k_scale",
                           "self_attn.k_proj.output_scale"}) {
    write({{fmt::format("model.layers.0.{}", name), {0.013f}}});
    EXPECT_NE(answer(DType::kF8E4M3).prompt_logits, unscaled.prompt_logits) << name;
    EXPECT_EQ(answer(std::nullopt).prompt_logits, plain.prompt_logits) << name;
    seen.push_back(answer(DType::kF8E4M3).prompt_logits.at(0));
    EXPECT_EQ(seen.back(), seen.front()) << name;
  }
  write({{"model.layers.0.self_attn.v_scale", {0.013f}}});
  EXPECT_NE(answer(DType::kF8E4M3).prompt_logits.at(0), seen.front());
}

TEST_F(ScaledModel, AScaleAHeadOrOneForAll) {
  const Index num_heads = io::load_model_config(dir_).num_kv_heads;
  write({{"model.layers.1.self_attn.k_scale", {0.02f}}});
  const Answer one = answer(DType::kF8E4M3);
  write({{"model.layers.1.self_attn.k_scale", std::vector<float>(static_cast<size_t>(num_heads), 0.02f)}});
  EXPECT_EQ(answer(DType::kF8E4M3).prompt_logits, one.prompt_logits);
  write(
      {{"model.layers.1.self_attn.k_scale", std::vector<float>(static_cast<size_t>(num_heads + 1), 0.02f)}});
  EXPECT_THROW(answer(DType::kF8E4M3), Error);
  write({{"model.layers.1.self_attn.k_scale", {0.0f}}});
  EXPECT_THROW(answer(DType::kF8E4M3), Error);
}

TEST_F(ScaledModel, WhatSaturatesIsCounted) {
  int64_t num_saturated = 0;
  write({});
  answer(DType::kF8E4M3, &num_saturated);
  EXPECT_EQ(num_saturated, 0);
  write({{"model.layers.0.self_attn.k_scale", {1e-4f}}});
  const Answer got = answer(DType::kF8E4M3, &num_saturated);
  EXPECT_GT(num_saturated, 0);
  for (const auto& row : got.prompt_logits)
    for (const float value : row) ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace longspan
