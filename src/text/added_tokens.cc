#include "text/added_tokens.h"

#include <utf8proc.h>

#include "core/error.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

bool is_white_space(char32_t point) {
  if ((point >= 0x09 && point <= 0x0D) || point == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(point));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

// Circled, squared and parenthesised Latin letters: symbols by category, yet alphabetic.
bool is_letter_in_symbol(char32_t point) {
  return (point >= 0x24B6 && point <= 0x24E9) || (point >= 0x1F130 && point <= 0x1F149) ||
         (point >= 0x1F150 && point <= 0x1F169) || (point >= 0x1F170 && point <= 0x1F189);
}

// \w of Unicode regular expressions (UTS 18 annex C): alphabetic, marks, decimal numbers, connectors,
// joiners.
bool is_word(char32_t point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return point == 0x200C || point == 0x200D || is_letter_in_symbol(point);
  }
}

// The character that ends before byte `end` (> 0) of valid text.
CodePoint code_point_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while ((static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return code_point_at(text, begin);
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(code_point_before(text, begin).value)) ||
         (end < text.size() && is_word(code_point_at(text, end).value));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), token_at_(1, -1), begins_token_(256) {
  for (size_t token_idx = 0; token_idx < tokens_.size(); ++token_idx) {
    const std::string& content = tokens_[token_idx].content;
    CHECK(!content.empty());
    begins_token_[static_cast<uint8_t>(content[0])] = true;
    size_t node = 0;
    for (const char byte : content) {
      const auto [it, is_new] = edges_.try_emplace(edge(node, byte), token_at_.size());
      if (is_new) token_at_.push_back(-1);
      node = it->second;
    }
    CHECK_MSG(token_at_[node] < 0, "added token '{}' twice", content);
    token_at_[node] = static_cast<int32_t>(token_idx);
  }
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t begin,
                                                SpecialTokens policy) const {
  const AddedToken* longest = nullptr;
  size_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto it = edges_.find(edge(node, text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_at_[node] < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(token_at_[node])];
    if (policy == SpecialTokens::kParse || !token.special) longest = &token;
  }
  return longest;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::next(std::string_view valid_text, size_t from,
                                                                SpecialTokens policy) const {
  for (size_t begin = from; begin < valid_text.size(); ++begin) {
    if (!begins_token_[static_cast<uint8_t>(valid_text[begin])]) continue;
    const AddedToken* const token = longest_at(valid_text, begin, policy);
    if (!token) continue;
    size_t end = begin + token->content.size();
    if (token->single_word && touches_word(valid_text, begin, end)) {
      begin = end - 1;
      continue;
    }
    if (token->lstrip) {
      while (begin > from) {
        const CodePoint point = code_point_before(valid_text, begin);
        if (!is_white_space(point.value)) break;
        begin -= point.size_bytes;
      }
    }
    if (token->rstrip) {
      while (end < valid_text.size()) {
        const CodePoint point = code_point_at(valid_text, end);
        if (!is_white_space(point.value)) break;
        end += point.size_bytes;
      }
    }
    return Match{begin, end, token->id};
  }
  return std::nullopt;
}

}  // namespace longspan::text
