// Added tokens: strings such as <|im_end|> that are found in the text itself, before the pre-tokenizer sees
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace longspan::text {

// What the text of a special token becomes. Text that a user wrote should not turn into control tokens.
enum class SpecialTokens : uint8_t {
  kParse,   // its id
  kAsText,  // plain text. Added tokens that are not special (<think>, <tool_call>) become ids all the same
};

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // control token: left out by Decoding::kSkipSpecial
  bool lstrip = false;       // swallows the white space to its left
  bool rstrip = false;       // swallows the white space to its right
  bool single_word = false;  // matches only between characters that belong to no word
  bool normalized = false;   // matched in normalised text, not in the raw one

  bool operator==(const AddedToken&) const = default;
};

// Finds added tokens, leftmost first and the longest of those. Immutable after construction.
class AddedTokenMatcher final {
 public:
  // Contents must be non-empty and unique.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  struct Match {
    size_t begin;  // bytes [begin, end) of the text, with the white space that the token swallows
    size_t end;
    int32_t id;
  };
  // The first match in valid UTF-8 text at or behind byte `from`, where the last match ended.
  std::optional<Match> next(std::string_view valid_text, size_t from, SpecialTokens policy) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t begin, SpecialTokens policy) const;

  static uint64_t edge(size_t node, char byte) { return uint64_t{node} << 8 | static_cast<uint8_t>(byte); }

  std::vector<AddedToken> tokens_;
  // A trie; node 0 is the root.
  std::unordered_map<uint64_t, size_t> edges_;  // edge(node, byte) -> node
  std::vector<int32_t> token_at_;   // [num_nodes] index of the token that ends at a node, -1 for none
  std::vector<bool> begins_token_;  // [256] some token begins with this byte
};

}  // namespace longspan::text
