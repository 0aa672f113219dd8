#include "cache/page_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cache/model_specs.h"
#include "core/error.h"

namespace longspan::cache {
namespace {

int64_t page_of(const CacheSpec& spec, int64_t alignment, bool prefix_caching = false) {
  return plan_pages(spec, {.alignment = alignment, .prefix_caching = prefix_caching}).page_tokens;
}

std::string refusal(const CacheSpec& spec, const PagePlanOptions& options) {
  try {
    plan_pages(spec, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PagePlan, PublishedModelsAtBothAlignments) {
  EXPECT_EQ(page_of(qwen_0_8b(), 16), 544);
  EXPECT_EQ(page_of(qwen_0_8b(), 64), 576);
  EXPECT_EQ(page_of(qwen_4b(), 16), 528);
  EXPECT_EQ(page_of(qwen_4b(), 64), 576);
  EXPECT_EQ(page_of(qwen_27b(), 16), 784);
  EXPECT_EQ(page_of(qwen_27b(), 64), 832);
}

TEST(PagePlan, SizesOfThe27B) {
  const PagePlan plan = plan_pages(qwen_27b(), {.alignment = 64});
  EXPECT_EQ(plan.kv_bytes_per_token, 4096);
  EXPECT_EQ(plan.state.ssm_bytes, 48 * 128 * 128 * 4);
  EXPECT_EQ(plan.state.conv_offset, plan.state.ssm_bytes);
  EXPECT_EQ(plan.state.conv_bytes, 3 * 10240 * 2);
  EXPECT_EQ(plan.state.size_bytes, 3207168);
  EXPECT_EQ(plan.attention_page_bytes, 832 * 4096);
  EXPECT_EQ(plan.state_page_bytes, plan.attention_page_bytes);
  EXPECT_EQ(plan.v_plane_offset(), 832 * 2048);
  EXPECT_NEAR(plan.state_padding_percent, 6.2578, 1e-3);
  EXPECT_EQ(plan.rule, PageRule::kStateSize);
}

TEST(PagePlan, PrefixCachingRoundsToTheStateChunk) {
  EXPECT_EQ(page_of(qwen_27b(), 64, /*prefix_caching=*/true), 1024);
  EXPECT_EQ(page_of(qwen_27b(), 16, /*prefix_caching=*/true), 1024);
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 64, .prefix_caching = true}).rule, PageRule::kPrefixCaching);
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 64, .prefix_caching = true, .state_chunk = 64}).page_tokens,
            832);
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 48, .prefix_caching = true, .state_chunk = 64}).page_tokens,
            960);
}

TEST(PagePlan, Fp8CacheAndRanksChangeThePage) {
  CacheSpec fp8 = qwen_27b();
  fp8.kv_dtype = DType::kF8E4M3;
  EXPECT_EQ(page_of(fp8, 16), 1568);
  EXPECT_EQ(page_of(fp8, 64), 1600);

  CacheSpec eight_ranks = qwen_27b();
  eight_ranks.tensor_parallel = 8;  // four KV heads: each rank holds a copy of one
  EXPECT_EQ(page_of(eight_ranks, 16), 400);
  EXPECT_EQ(plan_pages(eight_ranks, {}).kv_bytes_per_token, 1024);
  EXPECT_EQ(plan_pages(eight_ranks, {}).state.size_bytes, 400896);
}

TEST(PagePlan, HalfPrecisionStateHalvesThePage) {
  CacheSpec spec = qwen_27b();
  spec.state_dtype = DType::kBF16;
  EXPECT_EQ(page_of(spec, 16), 400);  // (48 * 128 * 128 + 3 * 10240) * 2 = 1,634,304 B
}

TEST(PagePlan, DenseAndSplitPagesAreTheAlignment) {
  EXPECT_EQ(page_of(dense(4), 16), 16);
  EXPECT_EQ(page_of(dense(4), 64, /*prefix_caching=*/true), 64);
  const PagePlan split =
      plan_pages(qwen_27b(), {.alignment = 64, .layout = Layout::kSplit, .prefix_caching = true});
  EXPECT_EQ(split.page_tokens, 64);
  EXPECT_EQ(split.rule, PageRule::kAlignment);
  EXPECT_EQ(split.state_page_bytes, split.state.size_bytes);
}

TEST(PagePlan, BlockSizeIsTheAlignmentWhenLarger) {
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 16, .block_size = 64}).page_tokens, 832);
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 64, .block_size = 16}).page_tokens, 832);
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 16, .block_size = 64}).alignment, 64);
}

TEST(PagePlan, MinimumRaisesInStepsOfTheAlignment) {
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 64, .min_page_tokens = 784}).page_tokens, 832);
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 64, .min_page_tokens = 833}).page_tokens, 896);
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 64, .min_page_tokens = 833}).rule, PageRule::kMinimum);
  EXPECT_EQ(
      plan_pages(qwen_27b(), {.alignment = 64, .prefix_caching = true, .min_page_tokens = 1025}).page_tokens,
      1280);
}

// The two traps of the field reports: the page that was not the one in the config.
TEST(PagePlan, WrongExpectationNamesTheRuleThatMovedThePage) {
  EXPECT_EQ(plan_pages(qwen_27b(), {.alignment = 64, .target_page_tokens = 832}).page_tokens, 832);

  const std::string inactive = refusal(qwen_27b(), {.alignment = 16, .target_page_tokens = 832});
  EXPECT_TRUE(contains(inactive, "784 tokens, need 832")) << inactive;
  EXPECT_TRUE(contains(inactive, "alignment 16 is active, 832 tokens need alignment 64")) << inactive;

  const std::string raised =
      refusal(qwen_27b(), {.alignment = 64, .prefix_caching = true, .target_page_tokens = 832});
  EXPECT_TRUE(contains(raised, "1024 tokens, need 832")) << raised;
  EXPECT_TRUE(contains(raised, "prefix caching is on and raised the page")) << raised;

  const std::string both =
      refusal(qwen_27b(), {.alignment = 16, .prefix_caching = true, .target_page_tokens = 832});
  EXPECT_TRUE(contains(both, "prefix caching is on and raised")) << both;
  EXPECT_TRUE(contains(both, "need alignment 64")) << both;

  const std::string minimum =
      refusal(qwen_27b(), {.alignment = 64, .min_page_tokens = 900, .target_page_tokens = 832});
  EXPECT_TRUE(contains(minimum, "min_page_tokens 900 raised")) << minimum;

  const std::string hopeless = refusal(qwen_27b(), {.alignment = 64, .target_page_tokens = 100});
  EXPECT_TRUE(contains(hopeless, "the size of a state raised")) << hopeless;
}

TEST(PagePlan, DerivationShowsEachStep) {
  const PagePlan plan = plan_pages(qwen_27b(), {.alignment = 64, .prefix_caching = true});
  std::string text;
  for (const std::string& line : plan.derivation) text += line + "\n";
  for (const char* part : {"4,096 B per token", "3,207,168 B", "= 783 tokens", "832 tokens",
                           "lcm(256, 64) = 256: 1024", "set by prefix caching", "30.78 %"})
    EXPECT_TRUE(contains(text, part)) << part << " not in\n" << text;
}

TEST(PagePlan, SpecsThatDoNotDivideAreRefused) {
  CacheSpec spec = qwen_27b();
  spec.tensor_parallel = 5;
  EXPECT_TRUE(contains(refusal(spec, {}), "ranks"));
  spec.tensor_parallel = 32;  // 48 value heads
  EXPECT_TRUE(contains(refusal(spec, {}), "num_v_heads is 48"));
  spec = qwen_27b();
  spec.head_dim = 0;
  EXPECT_TRUE(contains(refusal(spec, {}), "head_dim is 0"));
  EXPECT_TRUE(contains(refusal(qwen_27b(), {.alignment = 0}), "alignment is 0"));
}

TEST(PagePlan, UnifiedGroupsAreAsTallAsTheAttentionGroup) {
  const PagePlan plan = plan_pages(qwen_27b(), {});
  ASSERT_EQ(plan.groups.size(), 4u);
  EXPECT_EQ(plan.num_layer_tensors, 16);
  EXPECT_EQ(plan.num_state_tensors, 0);
  EXPECT_EQ(plan.num_state_groups(), 3);
  for (const LayerGroup& group : plan.groups) EXPECT_EQ(group.layers.size(), 16u);
  for (size_t layer = 0; layer < plan.places.size(); ++layer) {
    const LayerPlace place = plan.places[layer];
    EXPECT_EQ(plan.groups[static_cast<size_t>(place.group)].layers[static_cast<size_t>(place.index)],
              static_cast<int32_t>(layer));
  }
}

TEST(PagePlan, LayersThatDoNotDivideLeaveASmallerLastGroup) {
  CacheSpec spec = qwen_27b();
  const LayerKind a = LayerKind::kAttention, s = LayerKind::kState;
  spec.layers = {s, a, s, a, s, a, s};
  const PagePlan plan = plan_pages(spec, {});
  ASSERT_EQ(plan.groups.size(), 3u);
  EXPECT_EQ(plan.groups[0].layers, (std::vector<int32_t>{1, 3, 5}));
  EXPECT_EQ(plan.groups[1].layers, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(plan.groups[2].layers, (std::vector<int32_t>{6}));
  EXPECT_EQ(plan.places[6].group, 2);
  EXPECT_EQ(plan.places[6].index, 0);
  EXPECT_EQ(plan.num_layer_tensors, 3);
}

TEST(PagePlan, SplitKeepsAllStateLayersInOneGroup) {
  const PagePlan plan = plan_pages(qwen_27b(), {.alignment = 64, .layout = Layout::kSplit});
  ASSERT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ(plan.groups[1].layers.size(), 48u);
  EXPECT_EQ(plan.num_layer_tensors, 16);
  EXPECT_EQ(plan.num_state_tensors, 48);
}

TEST(PagePlan, OddStateBytesAreAligned) {
  CacheSpec spec = qwen_27b();
  spec.num_v_heads = 1;
  spec.v_dim = 5;
  spec.k_dim = 5;  // 100 B of state
  const PagePlan plan = plan_pages(spec, {});
  EXPECT_EQ(plan.state.conv_offset, 128);
  EXPECT_EQ(plan.state.size_bytes, 128 + plan.state.conv_bytes);
}

TEST(MemoryPlan, UnifiedCountsTheStatePagesOfASequence) {
  const PagePlan plan = plan_pages(qwen_27b(), {.alignment = 64});
  const int64_t page_bytes = int64_t{832} * 4096 * 16;
  const MemoryPlan memory =
      plan_memory(plan, 430 * page_bytes + 5, /*max_model_len=*/32768, /*max_num_seqs=*/128);
  EXPECT_EQ(memory.page_bytes, page_bytes);
  EXPECT_EQ(memory.num_pages, 430);
  EXPECT_EQ(memory.num_state_slots, 0);
  EXPECT_DOUBLE_EQ(memory.concurrency, 10.0);  // 40 pages of 832 tokens and 3 pages of state each
  EXPECT_EQ(memory.num_tokens, 327680);
}

TEST(MemoryPlan, SplitTakesTheSlotsFirst) {
  const PagePlan plan = plan_pages(qwen_27b(), {.alignment = 64, .layout = Layout::kSplit});
  const int64_t page_bytes = int64_t{64} * 4096 * 16;
  const int64_t slot_bytes = int64_t{3207168} * 48;
  const MemoryPlan memory =
      plan_memory(plan, 6 * slot_bytes + 1024 * page_bytes, 32768, 4, /*num_checkpoints=*/2);
  EXPECT_EQ(memory.slot_bytes, slot_bytes);
  EXPECT_EQ(memory.num_state_slots, 6);
  EXPECT_EQ(memory.num_pages, 1024);
  EXPECT_DOUBLE_EQ(memory.concurrency, 2.0);
  EXPECT_EQ(plan_memory(plan, slot_bytes, 32768, 4).num_pages, 0);
}

TEST(SwapPlan, PagesAloneWhenUnifiedAndASlotForEachSequenceWhenSplit) {
  const PagePlan unified = plan_pages(qwen_27b(), {.alignment = 64});
  const int64_t page_bytes = int64_t{832} * 4096 * 16;
  const SwapPlan pages = plan_swap(unified, 10 * page_bytes + 5, /*max_num_seqs=*/4);
  EXPECT_EQ(pages.num_pages, 10);
  EXPECT_EQ(pages.num_state_slots, 0);
  EXPECT_EQ(pages.size_bytes, 10 * page_bytes);

  const PagePlan split = plan_pages(qwen_27b(), {.alignment = 64, .layout = Layout::kSplit});
  const int64_t slot_bytes = int64_t{3207168} * 48;
  const int64_t small_page_bytes = int64_t{64} * 4096 * 16;
  const SwapPlan both = plan_swap(split, 8 * slot_bytes, 4);
  EXPECT_EQ(both.num_state_slots, 2) << "a quarter of the budget";
  EXPECT_EQ(both.num_pages, 6 * slot_bytes / small_page_bytes);
  EXPECT_EQ(plan_swap(split, 800 * slot_bytes, 4).num_state_slots, 4) << "as many as there are sequences";
  EXPECT_EQ(plan_swap(split, slot_bytes, 4).num_pages, 0) << "pages without a state are of no use";
}

}  // namespace
}  // namespace longspan::cache
