#include "text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "text/utf8.h"

namespace longspan::text {
namespace {

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("e\u0301\u0301"), "\u00E9\u0301");
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307") << "marks in canonical order";
  EXPECT_EQ(to_nfc("\u1100\u1161\u11A8"), "\uAC01") << "Hangul";
  EXPECT_EQ(to_nfc("\u212B \u2126"), "\u00C5 \u03A9") << "singletons";
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C") << "composition exclusion";
  EXPECT_EQ(to_nfc("\uFB01"), "\uFB01") << "compatibility characters stay";
  EXPECT_EQ(to_nfc(std::string_view("a\0e\u0301", 5)), std::string_view("a\0\u00E9", 4))
      << "NUL is a character";
}

// The reference tokenizers carry tables of about Unicode 9 and leave the 98 marks that came later where they
// stand (here one of Unicode 11, before one of Unicode 2). We follow the standard; ids differ for such
// sequences only.
TEST(Nfc, KnowsRecentMarks) { EXPECT_EQ(to_nfc("T\U00010F48\u0F72"), "T\u0F72\U00010F48"); }

TEST(Nfc, QuickTestNeverClaimsTooMuch) {
  EXPECT_TRUE(is_certainly_nfc("na\u00EFve \u02AF"));
  EXPECT_FALSE(is_certainly_nfc("e\u0301"));
  for (char32_t value = 0; value < 0x110000; ++value) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string text = "a";
    append_utf8(value, text);
    if (!is_certainly_nfc(text)) continue;
    ASSERT_EQ(to_nfc(text), text) << static_cast<uint32_t>(value);
  }
}

TEST(Nfc, AgreesWithUtf8procOnEveryCharacterBetweenMarks) {
  for (char32_t value = 1; value < 0x110000; ++value) {
    if (value >= 0xD800 && value < 0xE000) continue;
    std::string text = "o\u0302";
    append_utf8(value, text);
    text += "\u0301\u0323\u0308";
    utf8proc_uint8_t* mapped = nullptr;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
    ASSERT_GE(size, 0);
    ASSERT_EQ(to_nfc(text), std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size)));
  }
}

// Swapping neighbours, as utf8proc_map does, would take 10^11 steps here.
TEST(Nfc, AMegabyteOfUnorderedMarks) {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0301\u0316";
  const std::string nfc = to_nfc(text);
  EXPECT_EQ(nfc.substr(0, 4), "\u00E1\u0316");
  EXPECT_EQ(nfc.size(), text.size() - 1);
}

}  // namespace
}  // namespace longspan::text
