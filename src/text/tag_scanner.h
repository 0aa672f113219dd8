// Looking for tags in text that is still arriving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace longspan::text {

// kMore: the text ends before it can be said.
enum class Match : uint8_t { kNo, kYes, kMore };

inline constexpr std::string_view kWhiteSpace = " \t\r\n";
inline constexpr std::string_view kCallOpen = "<tool_call>";
inline constexpr std::string_view kCallClose = "</tool_call>";
// White space that may stand between two tags; more of it is text, so that what is held back stays small.
inline constexpr size_t kMaxGap = 256;

// Without the white space at both ends. Bytes only: what a model writes need not be valid UTF-8.
std::string_view trim(std::string_view text);

// Does the text start with the tag? At the end of the stream there is no kMore.
Match starts_with_tag(std::string_view text, std::string_view tag, bool at_end);

// Does the text, after white space, start with one of the tags?
Match starts_with_any(std::string_view text, std::initializer_list<std::string_view> tags, bool at_end);

// Length of the longest end of the text that one of the tags may begin with.
size_t partial_tag_size(std::string_view text, std::initializer_list<std::string_view> tags);

}  // namespace longspan::text
