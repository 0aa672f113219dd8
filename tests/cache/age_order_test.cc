#include "cache/age_order.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace longspan::cache {
namespace {

TEST(AgeOrder, TheOldestComesFirst) {
  AgeOrder order(4);
  EXPECT_EQ(order.oldest(), -1);
  order.put(2, 30);
  order.put(0, 10);
  order.put(3, 20);
  EXPECT_EQ(order.oldest(), 0);
  order.put(0, 40);  // used again
  EXPECT_EQ(order.oldest(), 3);
  order.erase(3);
  order.erase(3);
  EXPECT_FALSE(order.contains(3));
  EXPECT_EQ(order.oldest(), 2);
  order.erase(2);
  order.erase(0);
  EXPECT_TRUE(order.empty());
}

TEST(AgeOrder, RandomChangesAgainstASortedMap) {
  constexpr int32_t kSlots = 50;
  std::mt19937 random(1);
  AgeOrder order(kSlots);
  std::map<int32_t, uint64_t> ages;
  for (int i = 0; i < 20'000; ++i) {
    const auto slot = static_cast<int32_t>(random() % kSlots);
    if (random() % 3 == 0) {
      order.erase(slot);
      ages.erase(slot);
    } else {
      const uint64_t age = uint64_t{random()} << 16 | static_cast<uint64_t>(i);  // no two the same
      order.put(slot, age);
      ages[slot] = age;
    }
    const auto oldest = std::min_element(ages.begin(), ages.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
    ASSERT_EQ(order.oldest(), oldest == ages.end() ? -1 : oldest->first);
    ASSERT_EQ(order.contains(slot), ages.contains(slot));
  }
}

}  // namespace
}  // namespace longspan::cache
