#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>

namespace longspan::cache {
namespace {

constexpr int64_t kPage = 128;
using Tokens = std::vector<int32_t>;

Tokens count_up(int64_t num_tokens, int32_t first = 0) {
  Tokens tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::span<const int32_t> first(const Tokens& tokens, int64_t count) {
  return std::span<const int32_t>(tokens).first(static_cast<size_t>(count));
}

// Pages and states come from two pools, as in the split layout; a state takes one slot.
class PrefixIndexTest : public testing::Test {
 protected:
  void use_options(PrefixIndexOptions options) { index_ = std::make_unique<PrefixIndex>(options); }
  PrefixIndex& index() { return *index_; }

  std::vector<Page> new_pages(int64_t num_tokens) {
    std::vector<Page> pages;
    for (int64_t at = 0; at < num_tokens; at += kPage) pages.push_back(*pages_.allocate());
    return pages;
  }
  StateSlot new_state(int64_t num_tokens) {
    StateSlot state;
    state.pages.push_back(*states_.allocate());
    state.num_tokens = num_tokens;
    return state;
  }
  // As a prompt that was prefilled and is gone again: pages, and states at the given counts.
  void remember(const Tokens& tokens, std::initializer_list<int64_t> states, std::string_view salt = "") {
    const std::vector<Page> pages = new_pages(std::ssize(tokens));
    for (const int64_t at : states) index().insert(salt, first(tokens, at), pages, new_state(at));
    index().insert(salt, first(tokens, std::ssize(tokens) / kPage * kPage), pages);
  }
  PrefixHit find(const Tokens& tokens, std::string_view salt = "") {
    return index().find(salt, tokens, std::ssize(tokens) - 1);
  }

  PagePool pages_{32, /*max_pinned=*/8};
  PagePool states_{16, /*max_pinned=*/2};
  std::unique_ptr<PrefixIndex> index_ = std::make_unique<PrefixIndex>(
      PrefixIndexOptions{.page_tokens = kPage, .needs_state = true, .min_boundary = 64, .max_nodes = 64});
};

TEST_F(PrefixIndexTest, HitIsTheLongestBoundaryThatHasBoth) {
  const Tokens prompt = count_up(600);
  remember(prompt, {128, 256});  // pages to 512, states to 256 only
  const PrefixHit hit = find(prompt);
  EXPECT_EQ(hit.num_tokens, 256);
  EXPECT_EQ(hit.pages.size(), 2u);
  EXPECT_FALSE(hit.partial);
  EXPECT_EQ(hit.state.num_tokens, 256);
  EXPECT_EQ(hit.miss, PrefixMiss::kNone);
}

TEST_F(PrefixIndexTest, TheLimitLeavesATokenToCompute) {
  const Tokens prompt = count_up(256);
  remember(prompt, {128, 256});
  EXPECT_EQ(find(prompt).num_tokens, 128);
  EXPECT_EQ(find(count_up(257)).num_tokens, 256);
}

TEST_F(PrefixIndexTest, APartlyFilledPageComesAsACopySource) {
  const Tokens prompt = count_up(300);
  remember(prompt, {128, 256, 192 + 64 + 32});  // last boundary inside the third page
  const PrefixHit hit = find(prompt);
  EXPECT_EQ(hit.num_tokens, 288);
  EXPECT_EQ(hit.pages.size(), 2u);
  ASSERT_TRUE(hit.partial);
  EXPECT_EQ(hit.state.num_tokens, 288);
}

TEST_F(PrefixIndexTest, APromptShorterThanAPageHits) {
  const Tokens prompt = count_up(100);
  remember(prompt, {64});
  const PrefixHit hit = find(prompt);
  EXPECT_EQ(hit.num_tokens, 64);
  EXPECT_TRUE(hit.pages.empty());
  EXPECT_TRUE(hit.partial);
  EXPECT_EQ(find(join(count_up(64), count_up(50, 900))).num_tokens, 64);
  EXPECT_EQ(find(join(count_up(63), count_up(50, 900))).num_tokens, 0);
}

TEST_F(PrefixIndexTest, ADifferentTokenEndsTheMatch) {
  remember(count_up(600), {128, 256, 384, 512});
  Tokens other = count_up(600);
  other[300] = 7;
  EXPECT_EQ(find(other).num_tokens, 256);
  other[0] = 7;
  EXPECT_EQ(find(other).num_tokens, 0);
}

TEST_F(PrefixIndexTest, BranchesShareTheirCommonPages) {
  const Tokens a = join(count_up(256), count_up(200, 5000));
  const Tokens b = join(count_up(256), count_up(200, 9000));
  remember(a, {256, 384});
  remember(b, {256, 384});
  EXPECT_EQ(index().stats().num_nodes, 4);  // two common, one each
  EXPECT_EQ(find(a).num_tokens, 384);
  EXPECT_EQ(find(b).num_tokens, 384);
  EXPECT_EQ(find(a).pages[1].id(), find(b).pages[1].id());
  EXPECT_NE(find(a).pages[2].id(), find(b).pages[2].id());
}

TEST_F(PrefixIndexTest, SaltsDoNotShare) {
  const Tokens prompt = count_up(300);
  remember(prompt, {256}, "tenant a");
  EXPECT_EQ(find(prompt, "tenant a").num_tokens, 256);
  EXPECT_EQ(find(prompt, "tenant b").num_tokens, 0);
  EXPECT_EQ(find(prompt).num_tokens, 0);
}

TEST_F(PrefixIndexTest, CollidingKeysAreTornApartByTheirTokens) {
  use_options(
      {.page_tokens = kPage, .needs_state = true, .min_boundary = 64, .max_nodes = 64, .key_bits = 0});
  const Tokens a = count_up(300);
  const Tokens b = count_up(300, 1000);
  const Tokens mixed = join(count_up(128), count_up(172, 1128));  // a's first page, b's second
  remember(a, {128, 256});
  EXPECT_EQ(find(b).num_tokens, 0);
  remember(b, {128, 256});
  EXPECT_EQ(find(a).num_tokens, 256);
  EXPECT_EQ(find(b).num_tokens, 256);
  EXPECT_NE(find(a).pages[0].id(), find(b).pages[0].id());
  EXPECT_EQ(find(mixed).num_tokens, 128) << "a page is found under its own parent only";
}

TEST_F(PrefixIndexTest, MissesAreCountedByCause) {
  remember(count_up(300), {});
  const Tokens too_short = count_up(64), unknown = count_up(300, 77), no_state = count_up(300);
  EXPECT_EQ(find(too_short).miss, PrefixMiss::kTooShort);
  EXPECT_EQ(find(unknown).miss, PrefixMiss::kNoKv);
  EXPECT_EQ(find(no_state).miss, PrefixMiss::kNoState);
  for (const Tokens& tokens : {too_short, unknown, no_state}) index().use(find(tokens), std::ssize(tokens));
  remember(count_up(300), {256});
  index().use(find(no_state), 300);
  const PrefixStats stats = index().stats();
  EXPECT_EQ(stats.num_lookups, 4);
  EXPECT_EQ(stats.num_miss_too_short, 1);
  EXPECT_EQ(stats.num_miss_no_kv, 1);
  EXPECT_EQ(stats.num_miss_no_state, 1);
  EXPECT_EQ(stats.num_hits, 1);
  EXPECT_EQ(stats.num_hit_tokens, 256);
  EXPECT_EQ(stats.num_queried_tokens, 964);
}

TEST_F(PrefixIndexTest, DenseModelsNeedNoState) {
  use_options({.page_tokens = kPage, .needs_state = false, .min_boundary = kPage, .max_nodes = 64});
  remember(count_up(400), {});
  const PrefixHit hit = find(count_up(400));
  EXPECT_EQ(hit.num_tokens, 384);
  EXPECT_FALSE(hit.state);
  EXPECT_EQ(find(count_up(100)).miss, PrefixMiss::kTooShort);
}

TEST_F(PrefixIndexTest, WhatIsKnownStays) {
  const Tokens prompt = count_up(256);
  remember(prompt, {128});
  const int32_t page = find(prompt).pages[0].id();
  remember(prompt, {128});
  EXPECT_EQ(find(prompt).pages[0].id(), page);
  EXPECT_EQ(index().stats().num_nodes, 2);
  EXPECT_EQ(pages_.num_free(), 30);
  EXPECT_EQ(states_.num_free(), 15);
}

TEST_F(PrefixIndexTest, EvictionTakesTheLeastRecentlyUsedLeafFirst) {
  const Tokens old = count_up(257), fresh = count_up(257, 5000);
  remember(old, {256});
  remember(fresh, {256});
  index().use(find(old), 257);  // now `fresh` is the older one
  EXPECT_TRUE(index().evict(pages_));
  EXPECT_EQ(find(fresh).num_tokens, 0);
  EXPECT_EQ(find(old).num_tokens, 256);
  EXPECT_TRUE(index().evict(pages_));  // the other page of `fresh`
  EXPECT_EQ(find(old).num_tokens, 256);
  EXPECT_TRUE(index().evict(pages_));
  EXPECT_TRUE(index().evict(pages_));
  EXPECT_FALSE(index().evict(pages_));
  EXPECT_EQ(pages_.num_free(), 32);
  EXPECT_EQ(states_.num_free(), 16) << "a node takes its state along";
}

TEST_F(PrefixIndexTest, StatesOnTheWayGrowOldBeforeTheOneInUse) {
  const Tokens prompt = count_up(400);
  remember(prompt, {128, 256, 384});
  index().use(find(prompt), 400);
  EXPECT_TRUE(index().evict(states_));
  EXPECT_TRUE(index().evict(states_));
  EXPECT_EQ(find(prompt).num_tokens, 384);
  EXPECT_TRUE(index().evict(states_));
  EXPECT_EQ(find(prompt).num_tokens, 0);
  EXPECT_EQ(find(prompt).miss, PrefixMiss::kNoState);
}

TEST_F(PrefixIndexTest, APartlyFilledPageGoesWithItsState) {
  remember(count_up(100), {64});
  EXPECT_TRUE(index().evict(states_));
  EXPECT_EQ(pages_.num_free(), 32);
}

TEST_F(PrefixIndexTest, APageThatIsPartialInOneNodeAndFullInAnotherStillComesBack) {
  remember(count_up(128), {64, 128});
  EXPECT_EQ(index().stats().num_nodes, 2);
  EXPECT_EQ(pages_.num_reclaimable(), 1);
  EXPECT_TRUE(index().evict(pages_)) << "both nodes go";
  EXPECT_EQ(pages_.num_free(), 32);
  EXPECT_EQ(states_.num_free(), 16);
}

TEST_F(PrefixIndexTest, PagesInUseAreNotEvicted) {
  const Tokens prompt = count_up(300);
  remember(prompt, {256});
  {
    const PrefixHit hit = find(prompt);
    EXPECT_FALSE(index().evict(pages_));
    EXPECT_FALSE(index().evict(states_));
    EXPECT_EQ(pages_.num_reclaimable(), 0);
  }
  EXPECT_EQ(pages_.num_reclaimable(), 2);
  EXPECT_EQ(states_.num_reclaimable(), 1);
  EXPECT_TRUE(index().evict(pages_));
}

// Two prompts computed the same first page at the same time; the index kept the first one's, and then the
// second page of the second.
TEST_F(PrefixIndexTest, AParentOfPagesInUseCanGo) {
  const Tokens prompt = count_up(256);
  index().insert("", first(prompt, 128), new_pages(128));
  const std::vector<Page> running = new_pages(256);
  index().insert("", prompt, running);
  EXPECT_EQ(index().stats().num_nodes, 2);
  EXPECT_EQ(pages_.num_free(), 29);
  EXPECT_EQ(pages_.num_reclaimable(), 1);
  EXPECT_TRUE(index().evict(pages_));
  EXPECT_EQ(pages_.num_free(), 30);
  EXPECT_EQ(index().stats().num_nodes, 0);
  EXPECT_FALSE(index().evict(pages_));
}

TEST_F(PrefixIndexTest, PinnedPagesAreNotEvicted) {
  const Tokens system = count_up(256);
  const Tokens prompt = join(system, count_up(300, 9000));
  remember(prompt, {128, 256, 384, 512});
  ASSERT_TRUE(index().pin("", system));
  while (index().evict(pages_)) {
  }
  while (index().evict(states_)) {
  }
  EXPECT_EQ(find(prompt).num_tokens, 256);
  EXPECT_EQ(pages_.num_free(), 30);
  index().unpin("", system);
  while (index().evict(pages_)) {
  }
  EXPECT_EQ(pages_.num_free(), 32);
}

TEST_F(PrefixIndexTest, APinBeyondTheLimitPinsNothing) {
  const Tokens prompt = count_up(128 * 10);
  remember(prompt, {128 * 10});
  EXPECT_FALSE(index().pin("", prompt));
  EXPECT_EQ(pages_.stats().num_pinned, 0);
  EXPECT_FALSE(index().pin("", count_up(128, 777))) << "unknown";
}

TEST_F(PrefixIndexTest, AFullIndexForgetsTheOldest) {
  use_options({.page_tokens = kPage, .needs_state = true, .min_boundary = 64, .max_nodes = 5});
  remember(count_up(256), {128, 256}, "a");        // a root and two pages
  remember(count_up(256, 5000), {128, 256}, "b");  // needs three, finds two
  EXPECT_EQ(find(count_up(257), "a").num_tokens, 128);
  EXPECT_EQ(find(count_up(257, 5000), "b").num_tokens, 256);
  for (int salt = 0; salt < 50; ++salt) remember(count_up(128), {128}, std::to_string(salt));
  EXPECT_EQ(find(count_up(129), "49").num_tokens, 128);
  EXPECT_EQ(find(count_up(129), "a").num_tokens, 0);
  EXPECT_LE(pages_.num_pages() - pages_.num_free(), 4);
}

TEST_F(PrefixIndexTest, WhatLeavesNothingTakesNoPlace) {
  use_options({.page_tokens = kPage, .needs_state = false, .min_boundary = kPage, .max_nodes = 2});
  for (int salt = 0; salt < 5; ++salt) remember(count_up(kPage - 1), {}, std::to_string(salt));
  remember(count_up(kPage), {}, "real");
  EXPECT_EQ(find(count_up(kPage + 1), "real").num_tokens, kPage);
}

TEST_F(PrefixIndexTest, AnIndexFullOfPagesInUseForgetsWhatIsNew) {
  use_options({.page_tokens = kPage, .needs_state = true, .min_boundary = 64, .max_nodes = 3});
  const Tokens prompt = count_up(512);
  const std::vector<Page> pages = new_pages(512);
  index().insert("", first(prompt, 384), pages, new_state(384));  // a root and two pages of three
  EXPECT_EQ(index().stats().num_nodes, 2);
  EXPECT_EQ(states_.num_free(), 16);
  index().insert("other", first(prompt, 128), pages);
  EXPECT_EQ(index().stats().num_nodes, 2);
}

TEST_F(PrefixIndexTest, ClearFreesEverything) {
  remember(count_up(512), {128, 320});
  remember(count_up(512, 5000), {512}, "salt");
  index().clear();
  EXPECT_EQ(pages_.num_free(), 32);
  EXPECT_EQ(states_.num_free(), 16);
  EXPECT_EQ(index().stats().num_nodes, 0);
  EXPECT_EQ(index().stats().num_states, 0);
}

TEST(TokenHasher, KeysDependOnOrderSaltAndEveryToken) {
  const auto key = [](std::string_view salt, const Tokens& tokens) {
    TokenHasher hasher(salt);
    hasher.push(tokens);
    return hasher.key();
  };
  EXPECT_EQ(key("", {1, 2, 3}), key("", {1, 2, 3}));
  EXPECT_FALSE(key("", {1, 2, 3}) == key("", {3, 2, 1}));
  EXPECT_FALSE(key("", {0}) == key("", {0, 0}));
  EXPECT_FALSE(key("", {0}) == key("", {}));
  EXPECT_FALSE(key("a", {1}) == key("b", {1}));
  EXPECT_FALSE(key("a", {'b', 1}) == key("ab", {1}));
}

TEST(TokenHasher, NeighboursDifferInAboutHalfOfTheBits) {
  int fewest = 128;
  for (int32_t token = 0; token < 4096; ++token) {
    TokenHasher a(""), b("");
    a.push(Tokens{token, 5, 6});
    b.push(Tokens{token + 1, 5, 6});
    fewest = std::min(fewest,
                      std::popcount(a.key().low ^ b.key().low) + std::popcount(a.key().high ^ b.key().high));
  }
  EXPECT_GT(fewest, 24);
}

}  // namespace
}  // namespace longspan::cache
