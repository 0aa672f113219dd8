#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "small_tokenizer.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

using Ids = std::vector<int32_t>;

// Ids 0..255 are bytes, 256 is half of U+9B31 and the start of the next character, 300 is special.
const Tokenizer& tokenizer() {
  static const Tokenizer instance = [] {
    nlohmann::json document = small_tokenizer({{"\xB1", "\xE9"}});
    document["added_tokens"] =
        nlohmann::json::array({added_token(300, "<|end|>", /*special=*/true), added_token(301, "<think>")});
    return Tokenizer::parse(document.dump());
  }();
  return instance;
}

// Streams, checking that every part is whole.
std::string stream(const Ids& ids, Decoding decoding = Decoding::kKeepSpecial) {
  Detokenizer detokenizer(tokenizer(), decoding);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_EQ(find_invalid_utf8(part), std::nullopt);
    text += part;
  }
  const std::string rest = detokenizer.finish();
  EXPECT_EQ(find_invalid_utf8(rest), std::nullopt);
  return text + rest;
}

Ids bytes(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

TEST(Detokenizer, HoldsBackHalfACharacter) {
  Detokenizer detokenizer(tokenizer(), Decoding::kKeepSpecial);
  EXPECT_EQ(detokenizer.push('a'), "a");
  EXPECT_EQ(detokenizer.push(0xE9), "");
  EXPECT_EQ(detokenizer.push(0xAC), "");
  EXPECT_EQ(detokenizer.push(256), "\u9B31") << "and keeps the byte behind it";
  EXPECT_EQ(detokenizer.push(0xAC), "");
  EXPECT_EQ(detokenizer.push(0xB1), "\u9B31");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, BytesThatCannotBeCompleted) {
  Detokenizer detokenizer(tokenizer(), Decoding::kKeepSpecial);
  EXPECT_EQ(detokenizer.push(0xFF), "\uFFFD") << "known at once";
  EXPECT_EQ(detokenizer.push(0x80), "\uFFFD");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push('x'), "\uFFFDx") << "one for the maximal subpart";
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(300), "\uFFFD<|end|>");
}

// SERVER.md T04: an answer cut off inside a character.
TEST(Detokenizer, EndInsideACharacter) {
  const Ids ids = bytes("\U0001F620\u9B31");
  for (size_t size = 0; size <= ids.size(); ++size) {
    const Ids cut(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(stream(cut), tokenizer().decode(cut, Decoding::kKeepSpecial)) << size;
  }
  Detokenizer detokenizer(tokenizer(), Decoding::kKeepSpecial);
  detokenizer.push(0xE9);
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "") << "as new";
}

TEST(Detokenizer, SkippedTokensDoNotBreakACharacter) {
  const Ids ids{0xE9, 300, 0xAC, 301, 0xE9, 300, 0xAC, 300, 0xB1};
  EXPECT_EQ(stream(ids, Decoding::kSkipSpecial), "\uFFFD<think>\u9B31");
  EXPECT_EQ(stream(ids, Decoding::kSkipSpecial), tokenizer().decode(ids, Decoding::kSkipSpecial));
}

TEST(Detokenizer, IdsWithoutATokenAreNothing) {
  EXPECT_EQ(stream({0xE9, 299, -5, 0xAC, 1 << 30, 0xB1}), "\u9B31");
}

// SERVER.md T01: every way to cut the text into two, then tokens at random.
TEST(Detokenizer, AnyCutGivesTheSameText) {
  constexpr std::string_view kText =
      "Repeat: \u9B31\u9F98\U0001FAE0\U0001F468\u200D\U0001F469\u200D\U0001F467 \u010F\u00E1";
  EXPECT_EQ(stream(bytes(kText)), kText);
  std::mt19937 random(3);
  const std::string_view interesting = "\x80\xBF\xC2\xE0\xA0\xED\x9F\xF0\x90\xF4\x8F\xFFxy";
  for (int round = 0; round < 20'000; ++round) {
    Ids ids;
    for (size_t size = random() % 12; ids.size() < size;) {
      const char c = interesting[random() % interesting.size()];
      ids.push_back(random() % 16 == 0 ? 256 : static_cast<uint8_t>(c));
    }
    ASSERT_EQ(stream(ids), tokenizer().decode(ids, Decoding::kKeepSpecial));
  }
}

// A token may hold any bytes, so cut a text into tokens at every two places.
TEST(Detokenizer, EverySplitOfAText) {
  const std::string text = "a\u00E9\u9B31\U0001F620\xF0\x9Fz";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      nlohmann::json document = small_tokenizer({});
      const std::string parts[] = {text.substr(0, first), text.substr(first, second - first),
                                   text.substr(second)};
      nlohmann::json& vocabulary = document["model"]["vocab"];
      Ids ids;
      for (const std::string& part : parts) {
        if (part.empty()) continue;
        const int next_id = static_cast<int>(vocabulary.size());
        const auto [entry, is_new] = vocabulary.emplace(spelling_of_bytes(part), next_id);
        ids.push_back(entry->get<int32_t>());
      }
      const Tokenizer cut = Tokenizer::parse(document.dump());
      Detokenizer detokenizer(cut, Decoding::kKeepSpecial);
      std::string streamed;
      for (const int32_t id : ids) {
        const std::string part = detokenizer.push(id);
        ASSERT_EQ(find_invalid_utf8(part), std::nullopt);
        streamed += part;
      }
      ASSERT_EQ(streamed + detokenizer.finish(), replace_invalid_utf8(text)) << first << ", " << second;
    }
  }
}

}  // namespace
}  // namespace longspan::text
