#include "text/utf8.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace longspan::text {
namespace {

using namespace std::string_literals;

TEST(Utf8, FirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("plain ASCII, longer than eight bytes"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("h\u00E9 \u9B31 \U0001F620\0x"s), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("0123456789\xFF"), 10u);
  EXPECT_EQ(find_invalid_utf8("ab\xC0\xAF"), 2u) << "overlong";
  EXPECT_EQ(find_invalid_utf8("ab\xE0\x9F\xBF"), 2u) << "overlong";
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0u) << "surrogate";
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u) << "above U+10FFFF";
  EXPECT_EQ(find_invalid_utf8("x\xE9\xAC"), 1u) << "cut off";
  EXPECT_EQ(find_invalid_utf8("\x80"), 0u) << "continuation byte alone";
}

TEST(Utf8, ValidateNamesWhatAndWhere) {
  validate_utf8("fine", "prompt");
  try {
    validate_utf8("0123456\xFE", "prompt");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("prompt"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("offset 7"), std::string::npos) << error.what();
  }
}

// The examples of the Unicode standard, section 3.9 (tables 3-8 to 3-11).
TEST(Utf8, OneReplacementForEachMaximalSubpart) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), r);
}

TEST(Utf8, OnlyAnUnfinishedCharacterIsIncomplete) {
  EXPECT_EQ(incomplete_utf8_suffix(""), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xC3"), 1u);
  EXPECT_EQ(incomplete_utf8_suffix("a\xE9\xAC"), 2u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x98\xA0"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x98\x41"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\xED\xA0"), 0u) << "no third byte makes a surrogate valid";
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80\x80"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\xC3\x28\xF1"), 1u);
}

TEST(Utf8, EveryCodePointSurvivesTheRoundTrip) {
  for (char32_t value = 0; value < 0x110000; ++value) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string text;
    append_utf8(value, text);
    const CodePoint point = code_point_at(text, 0);
    ASSERT_EQ(point.value, value);
    ASSERT_EQ(point.size_bytes, text.size());
    ASSERT_EQ(find_invalid_utf8(text), std::nullopt);
    for (size_t size = 1; size < text.size(); ++size) {
      ASSERT_EQ(incomplete_utf8_suffix(std::string_view(text).substr(0, size)), size);
    }
  }
}

}  // namespace
}  // namespace longspan::text
