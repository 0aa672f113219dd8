// Python's str operations on valid UTF-8. Positions and lengths are code points where Python's are.
// Case mapping is one code point to one (utf8proc), but for 'ß'.upper(): ligatures stay, where Python spells
// them out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::text::jinja {

bool is_space(char32_t c);      // str.isspace: more than ASCII, for example U+00A0 and U+3000
bool is_letter(char32_t c);     // str.isalpha
bool is_printable(char32_t c);  // repr() shows it as it is

int64_t count_code_points(std::string_view text);
// Byte offset of the code point with this index; text.size() when there are fewer.
size_t offset_of(std::string_view text, int64_t index);

enum class Side : uint8_t { kLeft = 1, kRight = 2, kBoth = 3 };
std::string_view strip(std::string_view text, Side side = Side::kBoth);
std::string_view strip_chars(std::string_view text, std::string_view chars, Side side = Side::kBoth);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title: a word starts after anything that has no case
std::string title_filter(
    std::string_view text);  // |title: a word starts after space, '-' and opening brackets

// max_splits < 0: no limit. An empty separator means runs of white space (str.split()).
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t max_splits = -1);
std::vector<std::string_view> rsplit(std::string_view text, std::string_view separator,
                                     int64_t max_splits = -1);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

// Non-overlapping occurrences; an empty needle occurs before each code point and at the end.
int64_t count_occurrences(std::string_view text, std::string_view needle);
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t max_count = -1);

std::string quote(std::string_view text);  // repr(str)

}  // namespace longspan::text::jinja
