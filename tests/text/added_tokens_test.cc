#include "text/added_tokens.h"

#include <gtest/gtest.h>

namespace longspan::text {

bool operator==(const AddedTokenMatcher::Match& a, const AddedTokenMatcher::Match& b) {
  return a.begin == b.begin && a.end == b.end && a.id == b.id;
}
void PrintTo(const AddedTokenMatcher::Match& match, std::ostream* out) {
  *out << match.id << "@[" << match.begin << ", " << match.end << ")";
}

namespace {

using AddedMatch = AddedTokenMatcher::Match;

std::vector<AddedMatch> matches(const std::vector<AddedToken>& tokens, std::string_view text,
                                SpecialTokens policy = SpecialTokens::kParse) {
  const AddedTokenMatcher matcher(tokens);
  std::vector<AddedMatch> result;
  size_t from = 0;
  while (const auto match = matcher.next(text, from, policy)) {
    result.push_back(*match);
    from = match->end;
  }
  return result;
}

TEST(AddedTokens, LeftmostThenLongest) {
  const std::vector<AddedToken> tokens{{1, "<a>"}, {2, "<a><b>"}, {3, "a><"}, {4, "<"}};
  EXPECT_EQ(matches(tokens, ""), std::vector<AddedMatch>{});
  EXPECT_EQ(matches(tokens, "x<a>y"), (std::vector<AddedMatch>{{1, 4, 1}}));
  EXPECT_EQ(matches(tokens, "<a><b>"), (std::vector<AddedMatch>{{0, 6, 2}}));
  EXPECT_EQ(matches(tokens, "<a><c"), (std::vector<AddedMatch>{{0, 3, 1}, {3, 4, 4}}));
}

TEST(AddedTokens, SpecialOnesCanBeText) {
  const std::vector<AddedToken> tokens{
      {.id = 1, .content = "<|end|>", .special = true}, {2, "<think>"}, {3, "<|"}};
  EXPECT_EQ(matches(tokens, "<|end|><think>"), (std::vector<AddedMatch>{{0, 7, 1}, {7, 14, 2}}));
  EXPECT_EQ(matches(tokens, "<|end|><think>", SpecialTokens::kAsText),
            (std::vector<AddedMatch>{{0, 2, 3}, {7, 14, 2}}));
}

TEST(AddedTokens, StripTakesTheWhiteSpaceBeside) {
  const std::vector<AddedToken> tokens{{.id = 1, .content = "<l>", .lstrip = true},
                                       {.id = 2, .content = "<r>", .rstrip = true}};
  EXPECT_EQ(matches(tokens, "a \t<l> b"), (std::vector<AddedMatch>{{1, 6, 1}}));
  EXPECT_EQ(matches(tokens, "a <r>\u3000\n b"), (std::vector<AddedMatch>{{2, 10, 2}}));
  EXPECT_EQ(matches(tokens, "<r>  <l>"), (std::vector<AddedMatch>{{0, 5, 2}, {5, 8, 1}}))
      << "what is taken is taken";
  EXPECT_EQ(matches(tokens, "  <l>"), (std::vector<AddedMatch>{{0, 5, 1}}));
}

TEST(AddedTokens, SingleWordStandsAlone) {
  const std::vector<AddedToken> tokens{{.id = 1, .content = "cat", .single_word = true}};
  EXPECT_EQ(matches(tokens, "cat"), (std::vector<AddedMatch>{{0, 3, 1}}));
  EXPECT_EQ(matches(tokens, "(cat) cats concat cat_ cat\u0301 \u24D0cat"),
            (std::vector<AddedMatch>{{1, 4, 1}}));
}

}  // namespace
}  // namespace longspan::text
