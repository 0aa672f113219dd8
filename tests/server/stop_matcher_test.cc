#include "server/stop_matcher.h"

#include <gtest/gtest.h>

#include <vector>

namespace longspan::server {
namespace {

struct Result {
  std::string text;
  std::optional<std::string> stop;
  bool operator==(const Result&) const = default;
};

Result run(const std::vector<std::string>& pieces, const std::vector<std::string>& stops,
           bool keep_stop = false) {
  StopMatcher matcher(stops, keep_stop);
  Result result;
  for (const std::string& piece : pieces) result.text += matcher.push(piece);
  result.text += matcher.finish();
  result.stop = matcher.found();
  return result;
}

// Every way to cut `text` into pieces; 2^(n-1) of them.
void for_every_split(const std::string& text,
                     const std::function<void(const std::vector<std::string>&)>& check) {
  for (size_t cuts = 0; cuts < size_t{1} << (text.size() - 1); ++cuts) {
    std::vector<std::string> pieces(1);
    for (size_t i = 0; i < text.size(); ++i) {
      pieces.back() += text[i];
      if (i + 1 < text.size() && (cuts >> i & 1) != 0) pieces.emplace_back();
    }
    check(pieces);
  }
}

TEST(StopMatcher, without_stops_everything_passes_at_once) {
  StopMatcher matcher({}, false);
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, the_text_ends_in_front_of_the_stop_for_every_split) {
  for_every_split("ABCDEFGHIJ", [](const auto& pieces) {
    EXPECT_EQ(run(pieces, {"DEFG"}), (Result{"ABC", "DEFG"}));
    EXPECT_EQ(run(pieces, {"DEFG"}, /*keep_stop=*/true), (Result{"ABCDEFG", "DEFG"}));
    EXPECT_EQ(run(pieces, {"DEX", "J"}), (Result{"ABCDEFGHI", "J"}));
    EXPECT_EQ(run(pieces, {"XYZ"}), (Result{"ABCDEFGHIJ", std::nullopt}));
  });
}

TEST(StopMatcher, the_stop_that_is_complete_first_wins_for_every_split) {
  for_every_split("xabcdy", [](const auto& pieces) {
    EXPECT_EQ(run(pieces, {"abcd", "bc"}), (Result{"xa", "bc"}));
    EXPECT_EQ(run(pieces, {"bcd", "abcd"}), (Result{"x", "abcd"}));  // both end there: the longest
  });
}

TEST(StopMatcher, a_stop_that_begins_inside_a_failed_one_is_found) {
  for_every_split("aaabaab", [](const auto& pieces) {
    EXPECT_EQ(run(pieces, {"aabaab"}), (Result{"a", "aabaab"}));
  });
}

// T05: no part of a stop string may leave.
TEST(StopMatcher, T05_a_possible_stop_is_held_back) {
  StopMatcher matcher({"DEFGHIJ"}, false);
  EXPECT_EQ(matcher.push("ABC DE"), "ABC ");
  EXPECT_EQ(matcher.push("FGHI"), "");
  EXPECT_EQ(matcher.push("X"), "DEFGHIX");
  EXPECT_EQ(matcher.push("DEF"), "");
  EXPECT_EQ(matcher.finish(), "DEF");
}

TEST(StopMatcher, an_empty_stop_stops_nothing) {
  EXPECT_EQ(run({"abc"}, {""}), (Result{"abc", std::nullopt}));
}

TEST(StopMatcher, nothing_comes_after_a_stop) {
  StopMatcher matcher({"|"}, false);
  EXPECT_EQ(matcher.push("a|b"), "a");
  EXPECT_EQ(matcher.push("c"), "");
  EXPECT_EQ(matcher.finish(), "");
}

}  // namespace
}  // namespace longspan::server
