// Regular expressions and ranges of numbers, against std::regex and against counting.
#include "text/grammar/regex.h"

#include <gtest/gtest.h>

#include <regex>

#include "core/error.h"
#include "text/grammar/number_range.h"
#include "text/grammar/random_text.h"

namespace longspan::testing {
namespace {

using text::Grammar;
using text::matches;
using text::Spelling;

Grammar grammar_of(const std::string& pattern, Spelling spelling = Spelling::kPlain) {
  text::GrammarBuilder builder;
  return builder.build(add_regex(builder, text::parse_regex(pattern), spelling, "", builder.end_of_rule()));
}

TEST(Regex, AgreesWithAnotherMatcherOnRandomTexts) {
  Random random(1);
  for (const char* pattern :
       {"^abc$",           "abc",          "^a*b+c?$",  "^(ab|cd)*$", "a|^b$|c$", "^[a-c]{2,3}$",
        "^(?:a|b){2}c*?$", "^[^ab]$",      "^\\w+\\d$", "^\\s*a\\S$", "^a.c$",    "^(a(b(c)?)?)?$",
        "^a{0}b{3,}$",     "^[\\d\\-x]+$", "^$",        "b$",         "^a|b",     "^(a|ab)(c|bcd)$",
        "^\\x61\\u0062$",  "^[a-]$",       "^[-a]$",    "^\\.\\*$",   "^(?:)$"}) {
    const Grammar grammar = grammar_of(pattern);
    const std::regex oracle(pattern, std::regex::ECMAScript);
    for (int i = 0; i < 400; ++i) {
      std::string text;
      for (size_t size = random() % 6; size > 0; --size) text += "aabbccd1-x. *"[random() % 13];
      EXPECT_EQ(matches(grammar, text), std::regex_search(text, oracle)) << pattern << "\n'" << text << "'";
    }
  }
}

TEST(Regex, CharactersBeyondAscii) {
  EXPECT_TRUE(matches(grammar_of("^.$"), "\xE6\x97\xA5"));
  EXPECT_TRUE(matches(grammar_of("^[^a]{2}$"), "\xC3\xA9\xF0\x9F\x98\x80"));
  EXPECT_FALSE(matches(grammar_of("^.$"), "\xE6\x97"));
  const Grammar range = grammar_of("^[\\u00e0-\\uffff]$");
  for (const char* text : {"\xC3\xA0", "\xDF\xBF", "\xE0\xA0\x80", "\xEF\xBF\xBF"})
    EXPECT_TRUE(matches(range, text));
  for (const char* text : {"\xC3\x9F", "\xF0\x90\x80\x80", "\xED\xA0\x80", "a"})
    EXPECT_FALSE(matches(range, text));
}

TEST(Regex, WritesWhatItsPlaceAllows) {
  EXPECT_TRUE(matches(grammar_of("^a\"\\\\\\n$", Spelling::kJsonString), R"(a\"\\\n)"));
  EXPECT_FALSE(matches(grammar_of("^a\"$", Spelling::kJsonString), "a\""));
  EXPECT_TRUE(matches(grammar_of("^[a<]+$", Spelling::kJsonString), "a<"));
  EXPECT_FALSE(matches(grammar_of("^[a<]+$", Spelling::kJsonInCall), "a<"));
  EXPECT_TRUE(matches(grammar_of("^a\"\\n$", Spelling::kBareInCall), "a\"\n"));
  EXPECT_FALSE(matches(grammar_of("^[a<]+$", Spelling::kBareInCall), "a<"));
}

TEST(Regex, WhatItDoesNotKnowIsAnError) {
  for (const char* pattern :
       {"(?=a)", "(?<!a)b", "(a)\\1", "\\bword", "\\p{L}", "(?<name>a)", "a^b", "(a$)", "a$b"})
    EXPECT_THROW(text::parse_regex(pattern), Error) << pattern;
  for (const char* pattern : {"(", ")", "[", "*a", "a{3,2}", "[z-a]", "\\", "\\u12", "a{99999}"})
    EXPECT_THROW(text::parse_regex(pattern), Error) << pattern;
}

TEST(NumberRange, IntegersAreExactlyThoseOfTheRange) {
  Random random(2);
  for (int i = 0; i < 60; ++i) {
    auto low = static_cast<int64_t>(random() % 2500) - 1250;
    auto high = low + static_cast<int64_t>(random() % 1500);
    const Grammar grammar = grammar_of(text::integer_regex({low, high}));
    for (int64_t n = -3000; n <= 3000; ++n)
      ASSERT_EQ(matches(grammar, std::to_string(n)), low <= n && n <= high)
          << n << " in " << low << ".." << high;
    EXPECT_FALSE(matches(grammar, "-0"));
    EXPECT_FALSE(matches(grammar, "0" + std::to_string(high)));
  }
}

TEST(NumberRange, OpenAndLargeRanges) {
  const Grammar above = grammar_of(text::integer_regex({.min = 7}));
  EXPECT_TRUE(matches(above, "7"));
  EXPECT_TRUE(matches(above, "999999999999999999"));
  EXPECT_FALSE(matches(above, "6"));
  EXPECT_FALSE(matches(above, "-8"));
  const Grammar below = grammar_of(text::integer_regex({.max = -7}));
  EXPECT_TRUE(matches(below, "-7"));
  EXPECT_FALSE(matches(below, "-6"));
  EXPECT_FALSE(matches(below, "0"));
  const Grammar all = grammar_of(text::integer_regex({INT64_MIN, INT64_MAX}));
  for (const char* text : {"-9223372036854775808", "9223372036854775807", "0"})
    EXPECT_TRUE(matches(all, text));
  for (const char* text : {"-9223372036854775809", "9223372036854775808"}) EXPECT_FALSE(matches(all, text));
}

TEST(NumberRange, NumbersStayInTheirRange) {
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const text::NumberRange range{.min = static_cast<int64_t>(random() % 200) - 100,
                                  .max = static_cast<int64_t>(random() % 200) - 50,
                                  .above_min = random() % 2 == 0,
                                  .below_max = random() % 2 == 0};
    const double low = static_cast<double>(*range.min);
    const double high = static_cast<double>(*range.max);
    if (low >= high) continue;
    const Grammar grammar = grammar_of(text::number_regex(range));
    const auto fits = [&](double x) {
      return (range.above_min ? x > low : x >= low) && (range.below_max ? x < high : x <= high);
    };
    for (int k = 0; k < 50; ++k) {
      const std::string text = random_text(grammar, random, random() % 20);
      EXPECT_TRUE(fits(std::stod(text))) << text << " in " << low << ".." << high;
    }
    for (int tenth = -1200; tenth < 2000; ++tenth) {
      const std::string text = (tenth < 0 ? "-" : "") + std::to_string(std::abs(tenth) / 10) +
                               (tenth % 10 == 0 ? "" : "." + std::to_string(std::abs(tenth) % 10));
      ASSERT_EQ(matches(grammar, text), fits(tenth / 10.0)) << text << " in " << low << ".." << high;
    }
  }
}

}  // namespace
}  // namespace longspan::testing
