// TokenTrie: the vocabulary as a tree of bytes, in the order in which a walk visits it. Special tokens are
// not in it. Added tokens that are not special (<tool_call>) are kept apart: they are markup, never text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace longspan::text {

// Immutable; may be shared by threads. Borrows the tokenizer.
class TokenTrie final {
 public:
  struct Node {
    int32_t end;          // one past the last node below this one
    int32_t first_token;  // into tokens(); those of this node end where the next node's begin
    uint16_t depth;       // bytes from the root: at least 1
    uint8_t byte;         // the last of them
  };
  struct Markup {
    int32_t token;
    std::string bytes;
  };

  explicit TokenTrie(const Tokenizer& tokenizer);

  // In preorder, behind a last one that only ends the tokens of the one before it.
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  std::span<const int32_t> tokens_at(int32_t node) const {
    const auto begin = static_cast<size_t>(nodes_[static_cast<size_t>(node)].first_token);
    const auto end = static_cast<size_t>(nodes_[static_cast<size_t>(node) + 1].first_token);
    return std::span(tokens_).subspan(begin, end - begin);
  }
  // All of them, in preorder.
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> tokens_below(int32_t node) const {  // without its own
    const auto begin = static_cast<size_t>(nodes_[static_cast<size_t>(node) + 1].first_token);
    const auto last = static_cast<size_t>(nodes_[static_cast<size_t>(node)].end);
    return tokens().subspan(begin, static_cast<size_t>(nodes_[last].first_token) - begin);
  }
  // The node of these bytes; none where no token begins so.
  std::optional<int32_t> find(std::string_view bytes) const;
  const std::vector<Markup>& markup() const { return markup_; }
  int32_t vocab_size() const { return tokenizer_.vocab_size(); }  // one past the largest token
  // What a token adds to a text: nothing, if it is special.
  std::string_view token_bytes(int32_t token) const {
    return tokenizer_.is_special(token) ? std::string_view() : tokenizer_.token_bytes(token);
  }
  int max_token_bytes() const { return max_token_bytes_; }

 private:
  const Tokenizer& tokenizer_;
  int max_token_bytes_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // by node, in preorder
  std::vector<Markup> markup_;
};

}  // namespace longspan::text
