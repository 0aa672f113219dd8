#include "text/splitter.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "small_tokenizer.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces split(std::string_view pattern, std::string_view text) { return RegexSplitter(pattern).split(text); }

TEST(Splitter, ContractionsInAnyCase) {
  EXPECT_EQ(split(kQwen35Pattern, "don't DON'T we'LL"), (Pieces{"don", "'t", " DON", "'T", " we", "'LL"}));
  EXPECT_EQ(split(kQwen35Pattern, "it'\u017F"), (Pieces{"it", "'\u017F"})) << "U+017F folds to s";
  EXPECT_EQ(split(kQwen35Pattern, "it'sx"), (Pieces{"it", "'s", "x"}));
}

TEST(Splitter, MarksBelongToWordsOfQwen35Only) {
  constexpr std::string_view kHindi = "\u0939\u093F\u0928\u094D\u0926\u0940";  // letter and mark in turn
  EXPECT_EQ(split(kQwen35Pattern, kHindi), Pieces{kHindi});
  EXPECT_EQ(split(kQwen2Pattern, kHindi), (Pieces{"\u0939", "\u093F\u0928", "\u094D\u0926", "\u0940"}));
  EXPECT_EQ(split(kQwen35Pattern, "\u0301a"), Pieces{"\u0301a"}) << "leading mark";
  EXPECT_EQ(split(kQwen35Pattern, "x \u0301y"), (Pieces{"x", " \u0301y"}));
}

TEST(Splitter, VariationSelectorIsAMark) {
  EXPECT_EQ(split(kQwen35Pattern, " \u2764\uFE0F!"), (Pieces{" \u2764", "\uFE0F", "!"}));
  EXPECT_EQ(split(kQwen35Pattern, "\u2764\uFE0F!"), (Pieces{"\u2764\uFE0F", "!"}));
  EXPECT_EQ(split(kQwen2Pattern, " \u2764\uFE0F!"), Pieces{" \u2764\uFE0F!"});
}

TEST(Splitter, DigitGroups) {
  EXPECT_EQ(split(kQwen35Pattern, "a 1234"), (Pieces{"a", " ", "1", "2", "3", "4"}));
  EXPECT_EQ(split(kLlama3Pattern, "a 1234"), (Pieces{"a", " ", "123", "4"}));
  EXPECT_EQ(split(kQwen35Pattern, "\u2167\u00BD\u0663"), (Pieces{"\u2167", "\u00BD", "\u0663"}))
      << "Nl, No, Nd";
  EXPECT_EQ(split(kLlama3Pattern, "\u2167\u00BD\u0663"), Pieces{"\u2167\u00BD\u0663"});
}

TEST(Splitter, WhiteSpace) {
  EXPECT_EQ(split(kQwen35Pattern, "\t\tx"), (Pieces{"\t", "\tx"}));
  EXPECT_EQ(split(kQwen35Pattern, " \n x"), (Pieces{" \n", " x"}));
  EXPECT_EQ(split(kQwen35Pattern, "a\r\n\r\n  b"), (Pieces{"a", "\r\n\r\n", " ", " b"}));
  EXPECT_EQ(split(kQwen35Pattern, "a  \n \n  "), (Pieces{"a", "  \n \n", "  "})) << "up to the last line end";
  EXPECT_EQ(split(kQwen35Pattern, "a\u00A0b\u3000\u2028c"), (Pieces{"a", "\u00A0b", "\u3000", "\u2028c"}));
  EXPECT_EQ(split(kQwen35Pattern, "1\u0085\u0085"), (Pieces{"1", "\u0085\u0085"}));
  EXPECT_EQ(split(kQwen35Pattern, "1\u180E\u180E"), (Pieces{"1", "\u180E\u180E"}));
  // U+180E has not been white space since Unicode 6.3: it may follow the optional space of punctuation.
  EXPECT_EQ(split(kQwen35Pattern, "1 \u180E!"), (Pieces{"1", " \u180E!"}));
  EXPECT_EQ(split(kQwen35Pattern, "f(x) {\r\n"), (Pieces{"f", "(x", ")", " {\r\n"}));
}

TEST(Splitter, WhatLiesBetweenMatches) {
  EXPECT_EQ(RegexSplitter("[0-9]+").split("ab12cd3"), (Pieces{"ab", "12", "cd", "3"}));
  EXPECT_EQ(RegexSplitter("[0-9]+", Gaps::kDrop).split("ab12cd3e"), (Pieces{"12", "3"}));
  EXPECT_EQ(RegexSplitter("x*").split("\u9B31xx\u9B31"), (Pieces{"\u9B31", "xx", "\u9B31"}))
      << "empty matches";
  EXPECT_EQ(RegexSplitter("[0-9]+").split(""), Pieces{});
}

TEST(Splitter, TranslatesOniguruma) {
  EXPECT_EQ(translate_pattern(R"([^\s\p{L}]+\S)"), R"([^\p{White_Space}\p{L}]+\P{White_Space})");
  EXPECT_EQ(translate_pattern(R"(\p{Han}\P{^Lu}\d)"), R"(\p{sc:Han}\P{^Lu}\p{Nd})");
  EXPECT_EQ(translate_pattern(R"(\u00e9\x41\x{1F620}[\-\]])"), R"(\x{00e9}\x{41}\x{1F620}[\-\]])");
  EXPECT_EQ(split(R"(a$|^b)", "a\nb"), (Pieces{"a", "\n", "b"})) << "^ and $ are those of lines";
}

TEST(Splitter, RefusesWhatTheTwoReadDifferently) {
  for (const std::string_view pattern :
       {R"(\h)",  R"(\w)",      R"(\bx)",    R"(\R)",   "[[:alpha:]]", "[a[bc]]", "[a&&b]", "[]a]",
        "(?m:x)", "(?P<n>x)",   "(*UCP)x",   "x{1,3}+", "x{2}?",       "x{,3}",   "x{",     R"(\p{)",
        R"(\pL)", R"(\p{L_}x)", R"(\x{zz})", R"(\u12)", "[a",          "\\"}) {
    try {
      translate_pattern(pattern);
      FAIL() << "accepted " << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kUnsupported) << pattern;
    }
  }
  for (const std::string_view pattern : {"(x", "x)", "*", R"(\p{Klingon})", R"(\p{xx})"}) {
    EXPECT_THROW(RegexSplitter{pattern}, Error) << pattern;
  }
}

std::string repeated(std::string_view text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

// llama.cpp#21919 and relatives: a recursive matcher overflows its stack here; a careless one needs hours.
TEST(Splitter, AMegabyteOfAnything) {
  for (const Jit jit : {Jit::kOn, Jit::kOff}) {
    const RegexSplitter splitter(kQwen35Pattern, Gaps::kKeep, jit);
    const size_t n = 1'000'000;
    EXPECT_EQ(splitter.split(std::string(n, 'a')).size(), 1u);
    EXPECT_EQ(splitter.split(std::string(n, ' ')).size(), 1u);
    EXPECT_EQ(splitter.split(std::string(n, ' ') + "x").size(), 2u);
    EXPECT_EQ(splitter.split(std::string(n, '7')).size(), n);
    EXPECT_EQ(splitter.split(std::string(n, '\n')).size(), 1u);
    EXPECT_EQ(splitter.split(std::string(n, '!')).size(), 1u);
    EXPECT_EQ(splitter.split(repeated("\u9B31", n / 3)).size(), 1u);
    EXPECT_EQ(splitter.split(repeated("\u0301", n / 2)).size(), 1u);
    EXPECT_EQ(splitter.split(repeated(" \n", n / 2)).size(), 1u);
    EXPECT_EQ(splitter.split(repeated("a ", n / 2)).size(), n / 2 + 1);
  }
}

// A group that repeats needs a backtracking frame per turn: more than the stack of compiled code has.
TEST(Splitter, DeepBacktrackingLeavesTheStack) {
  const std::string text = repeated("ab", 200'000);
  EXPECT_EQ(split("(?:a(b))+", text), Pieces{text});
}

TEST(Splitter, ARunawayPatternEndsInAnError) {
  try {
    split("(?:a|aa|a+)+b", std::string(64, 'a') + "cb");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kExhausted);
  }
}

TEST(Splitter, CompiledAndInterpretedAgreeOnEveryCharacter) {
  for (const std::string_view pattern : {kQwen35Pattern, kQwen2Pattern, kLlama3Pattern}) {
    std::string text;
    for (char32_t value = 1; value < 0x110000; ++value) {
      if (value < 0xD800 || value >= 0xE000) append_utf8(value, text);
      if (value % 7 == 0) text += " x";
    }
    const auto pieces = RegexSplitter(pattern).split(text);
    EXPECT_EQ(pieces, RegexSplitter(pattern, Gaps::kKeep, Jit::kOff).split(text));
    const size_t size =
        std::accumulate(pieces.begin(), pieces.end(), size_t{0},
                        [](size_t sum, std::string_view piece) { return sum + piece.size(); });
    EXPECT_EQ(size, text.size()) << "nothing is lost";
  }
}

}  // namespace
}  // namespace longspan::text
