#include "text/tag_scanner.h"

#include <algorithm>

namespace longspan::text {

std::string_view trim(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);  // npos + 1 == 0
}

Match starts_with_tag(std::string_view text, std::string_view tag, bool at_end) {
  if (text.starts_with(tag)) return Match::kYes;
  return !at_end && tag.starts_with(text) ? Match::kMore : Match::kNo;
}

Match starts_with_any(std::string_view text, std::initializer_list<std::string_view> tags, bool at_end) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  Match result = Match::kNo;
  for (const std::string_view tag : tags) {
    const Match match = starts_with_tag(text, tag, at_end);
    if (match == Match::kYes) return match;
    if (match == Match::kMore) result = match;
  }
  return result;
}

size_t partial_tag_size(std::string_view text, std::initializer_list<std::string_view> tags) {
  size_t longest = 0;
  for (const std::string_view tag : tags) {
    for (size_t size = std::min(tag.size() - 1, text.size()); size > longest; --size) {
      if (!text.ends_with(tag.substr(0, size))) continue;
      longest = size;
      break;
    }
  }
  return longest;
}

}  // namespace longspan::text
