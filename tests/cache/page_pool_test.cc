#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cache/state_slot.h"

namespace longspan::cache {
namespace {

TEST(PagePool, HandsOutEachPageOnceAndThenNothing) {
  PagePool pool(3);
  std::vector<Page> pages;
  std::set<int32_t> ids;
  for (int i = 0; i < 3; ++i) {
    pages.push_back(*pool.allocate());
    ids.insert(pages.back().id());
  }
  EXPECT_EQ(ids, (std::set<int32_t>{0, 1, 2}));
  EXPECT_FALSE(pool.allocate());
  EXPECT_EQ(pool.stats().num_refusals, 1);
  pages.pop_back();
  EXPECT_TRUE(pool.allocate());
}

TEST(PagePool, TheLastUseFreesThePage) {
  PagePool pool(2);
  Page page = *pool.allocate();
  Page shared = page.share();
  EXPECT_EQ(page.id(), shared.id());
  EXPECT_EQ(page.use_count(), 2);
  page.reset();
  EXPECT_FALSE(page);
  EXPECT_EQ(page.id(), -1);
  EXPECT_EQ(pool.num_free(), 1);
  shared.reset();
  EXPECT_EQ(pool.num_free(), 2);
}

// Every change of a page's holders is counted when it happens.
TEST(PagePool, ReclaimableArePagesThatOnlyTheIndexHolds) {
  PagePool pool(3, /*max_pinned=*/1);
  Page running = *pool.allocate();
  const int32_t id = running.id();
  EXPECT_FALSE(pool.is_reclaimable(id));
  Page cached = running.share();
  pool.add_index_use(id);
  EXPECT_EQ(pool.num_reclaimable(), 0) << "a sequence uses it too";
  running.reset();
  EXPECT_TRUE(pool.is_reclaimable(id));
  EXPECT_EQ(pool.num_reclaimable(), 1);
  Page twice = cached.share();
  EXPECT_EQ(pool.num_reclaimable(), 0);
  pool.add_index_use(id);
  EXPECT_EQ(pool.num_reclaimable(), 1) << "two nodes of the index";
  EXPECT_TRUE(pool.pin(id));
  EXPECT_EQ(pool.num_reclaimable(), 0);
  pool.unpin(id);
  EXPECT_EQ(pool.num_reclaimable(), 1);
  pool.drop_index_use(id);
  twice.reset();
  EXPECT_EQ(pool.num_reclaimable(), 1);
  pool.drop_index_use(id);
  cached.reset();
  EXPECT_EQ(pool.num_reclaimable(), 0);
  EXPECT_EQ(pool.num_free(), 3);
  const Page again = *pool.allocate();
  EXPECT_FALSE(pool.is_reclaimable(again.id())) << "nothing is left of its past";
}

TEST(PagePool, MovingHandsTheUseOver) {
  PagePool pool(2);
  Page a = *pool.allocate();
  const int32_t id = a.id();
  Page b = std::move(a);
  EXPECT_EQ(b.id(), id);
  EXPECT_EQ(b.use_count(), 1);
  Page c = *pool.allocate();
  c = std::move(b);  // frees what c held
  EXPECT_EQ(c.id(), id);
  EXPECT_EQ(pool.num_free(), 1);
  Page& self = c;
  c = std::move(self);
  EXPECT_EQ(c.id(), id);
}

TEST(PagePool, ThePageFreedLastComesFirst) {
  PagePool pool(4);
  Page a = *pool.allocate();
  Page b = *pool.allocate();
  const int32_t id = a.id();
  a.reset();
  EXPECT_EQ(pool.allocate()->id(), id);
}

TEST(PagePool, PinsAreLimitedAndEndWithThePage) {
  PagePool pool(3, /*max_pinned=*/1);
  Page a = *pool.allocate();
  Page b = *pool.allocate();
  EXPECT_TRUE(pool.pin(a.id()));
  EXPECT_TRUE(pool.pin(a.id()));  // once is enough
  EXPECT_FALSE(pool.pin(b.id()));
  EXPECT_EQ(pool.stats().num_pinned, 1);
  a.reset();
  EXPECT_EQ(pool.stats().num_pinned, 0);
  EXPECT_TRUE(pool.pin(b.id()));
  pool.unpin(b.id());
  EXPECT_FALSE(pool.is_pinned(b.id()));
}

TEST(PagePool, StatisticsRememberTheHighWaterMark) {
  PagePool pool(8);
  {
    std::vector<Page> pages;
    for (int i = 0; i < 5; ++i) pages.push_back(*pool.allocate());
  }
  const PoolStats stats = pool.stats();
  EXPECT_EQ(stats.num_pages, 8);
  EXPECT_EQ(stats.num_free, 8);
  EXPECT_EQ(stats.max_used, 5);
  EXPECT_EQ(stats.num_allocations, 5);
}

TEST(PagePoolDeathTest, APoolDoesNotDieBeforeItsPages) {
  EXPECT_DEATH(
      {
        Page page;
        PagePool pool(1);
        page = *pool.allocate();
      },
      "1 of 1 pages still in use");
}

TEST(StateSlot, ASharedSlotKeepsItsPagesAndItsTokenCount) {
  PagePool pool(3);
  StateSlot slot;
  EXPECT_FALSE(slot);
  for (int i = 0; i < 3; ++i) slot.pages.push_back(*pool.allocate());
  slot.num_tokens = 832;
  StateSlot copy = slot.share();
  slot = {};
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(copy.num_tokens, 832);
  copy = {};
  EXPECT_EQ(pool.num_free(), 3);
}

}  // namespace
}  // namespace longspan::cache
