#include "cache/cache_memory.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cache/model_specs.h"

namespace longspan::cache {
namespace {

PagePlan make_plan(Layout layout, bool prefix_caching = true) {
  CacheSpec spec = qwen_27b();
  spec.layers.resize(8);  // two attention layers; three state groups when unified
  return plan_pages(spec, {.alignment = 64, .layout = layout, .prefix_caching = prefix_caching});
}

TEST(CacheMemory, UnifiedStatesComeFromThePagePool) {
  CacheMemory memory(make_plan(Layout::kUnified), {.num_pages = 8});
  const auto state = memory.allocate_state();
  ASSERT_TRUE(state);
  EXPECT_EQ(state->pages.size(), 3u);
  EXPECT_EQ(memory.pages().num_free(), 5);
  EXPECT_EQ(&memory.states(), &memory.pages());
  EXPECT_FALSE(memory.may_fit(3, 1));
  EXPECT_TRUE(memory.may_fit(2, 1));
  EXPECT_TRUE(memory.can_ever_fit(5, 1));
  EXPECT_FALSE(memory.can_ever_fit(6, 1));
}

TEST(CacheMemory, SplitStatesHaveSlotsOfTheirOwn) {
  CacheMemory memory(make_plan(Layout::kSplit), {.num_pages = 8, .num_state_slots = 1});
  const auto state = memory.allocate_state();
  ASSERT_TRUE(state);
  EXPECT_EQ(state->pages.size(), 1u);
  EXPECT_EQ(memory.pages().num_free(), 8);
  EXPECT_FALSE(memory.allocate_state());
  EXPECT_FALSE(memory.may_fit(1, 1));
  EXPECT_TRUE(memory.may_fit(8, 0));
}

TEST(CacheMemory, AllocationIsAllOrNothing) {
  CacheMemory memory(make_plan(Layout::kUnified), {.num_pages = 4});
  EXPECT_FALSE(memory.allocate_pages(5));
  EXPECT_EQ(memory.pages().num_free(), 4);
  EXPECT_TRUE(memory.allocate_pages(4));
}

TEST(CacheMemory, WhatTheIndexHoldsIsGivenWhenNothingIsFree) {
  CacheMemory memory(make_plan(Layout::kUnified), {.num_pages = 4});
  std::vector<int32_t> tokens(3 * 1024);
  std::iota(tokens.begin(), tokens.end(), 0);
  memory.index()->insert("", tokens, *memory.allocate_pages(3));
  EXPECT_EQ(memory.pages().num_free(), 1);
  EXPECT_TRUE(memory.may_fit(4, 0));
  EXPECT_TRUE(memory.allocate_pages(3));
  EXPECT_EQ(memory.index()->stats().num_evicted_pages, 2);
}

// A checkpoint may cost older checkpoints, but no KV.
TEST(CacheMemory, CheckpointsTakeFreePagesOrThoseOfOlderOnes) {
  CacheMemory memory(make_plan(Layout::kUnified), {.num_pages = 8});
  std::vector<int32_t> tokens(2 * 1024);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<Page> kv = *memory.allocate_pages(2);
  const auto insert = [&](int64_t num_tokens, std::optional<StateSlot> state) {
    ASSERT_TRUE(state);
    state->num_tokens = num_tokens;
    memory.index()->insert("", std::span(tokens).first(static_cast<size_t>(num_tokens)), kv,
                           std::move(*state));
  };
  insert(1024, memory.allocate_checkpoint());
  insert(2048, memory.allocate_checkpoint());
  kv.clear();
  EXPECT_EQ(memory.pages().num_free(), 0);
  const auto third = memory.allocate_checkpoint();
  ASSERT_TRUE(third);
  EXPECT_EQ(memory.index()->stats().num_evicted_states, 1);
  EXPECT_EQ(memory.index()->stats().num_evicted_pages, 0);
  EXPECT_EQ(memory.index()->find("", tokens, 2048).num_tokens, 2048) << "the older one went";
  const auto fourth = memory.allocate_checkpoint();
  EXPECT_TRUE(fourth);
  EXPECT_FALSE(memory.allocate_checkpoint()) << "only KV is left";
  EXPECT_EQ(memory.pages().num_reclaimable(), 2);
  EXPECT_TRUE(memory.allocate_pages(2));
}

TEST(CacheMemory, PinnedPagesDoNotCountAsRoom) {
  CacheMemory memory(make_plan(Layout::kUnified), {.num_pages = 4, .max_pinned_pages = 1});
  EXPECT_TRUE(memory.can_ever_fit(3, 0));
  EXPECT_FALSE(memory.can_ever_fit(4, 0));
}

TEST(CacheMemory, HostMemoryIsBounded) {
  CacheMemory memory(make_plan(Layout::kUnified), {.num_pages = 4, .num_host_pages = 4});
  const auto pages = memory.allocate_host_pages(1);
  const auto state = memory.allocate_host_state();
  ASSERT_TRUE(state);
  EXPECT_EQ(state->pages.size(), 3u);
  EXPECT_FALSE(memory.allocate_host_pages(1));
}

TEST(CacheMemory, NoIndexWithoutPrefixCaching) {
  CacheMemory memory(make_plan(Layout::kUnified, /*prefix_caching=*/false), {.num_pages = 4});
  EXPECT_EQ(memory.index(), nullptr);
  EXPECT_FALSE(memory.allocate_pages(5));
}

}  // namespace
}  // namespace longspan::cache
