// UTF-8: checking, and decoding that never fails. Invalid bytes become U+FFFD, one for each maximal subpart
// (Unicode 3.9, best practice: what Python's errors='replace' and the WHATWG decoder do).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace longspan::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Offset of the first byte that is not part of a valid sequence; none when the text is valid UTF-8.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// Throws Error kInvalid that names `what` and the byte offset when the text is not valid UTF-8.
void validate_utf8(std::string_view text, std::string_view what);

// The text with each maximal invalid subpart replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Number of bytes (0 to 3) at the end that begin a character and may still be completed by further bytes.
size_t incomplete_utf8_suffix(std::string_view text);

// A character of valid UTF-8 text and its length in bytes.
struct CodePoint {
  char32_t value;
  size_t size_bytes;
};
CodePoint code_point_at(std::string_view valid_text, size_t offset);

void append_utf8(char32_t value, std::string& text);

}  // namespace longspan::text
