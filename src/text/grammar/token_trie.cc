#include "text/grammar/token_trie.h"

#include <algorithm>

namespace longspan::text {

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  constexpr size_t kMaxTokenBytes = UINT16_MAX;  // longer ones are never chosen
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || bytes.size() > kMaxTokenBytes || tokenizer.is_special(id)) continue;
    if (tokenizer.is_added(id))
      markup_.push_back({id, std::string(bytes)});
    else
      tokens_.push_back(id);
  }
  const auto bytes_of = [&](int32_t id) { return tokenizer.token_bytes(id); };
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t x, int32_t y) {
    const int order = bytes_of(x).compare(bytes_of(y));
    return order != 0 ? order < 0 : x < y;
  });
  std::vector<int32_t> open;  // nodes from the root to the last one
  std::string_view before;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      nodes_[static_cast<size_t>(open.back())].end = static_cast<int32_t>(nodes_.size());
  };
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = bytes_of(tokens_[i]);
    const auto common = std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end()).first;
    close_to(static_cast<size_t>(common - before.begin()));
    while (open.size() < bytes.size()) {
      const auto byte = static_cast<uint8_t>(bytes[open.size()]);
      open.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({.end = 0,
                        .first_token = static_cast<int32_t>(i),
                        .depth = static_cast<uint16_t>(open.size()),
                        .byte = byte});
    }
    before = bytes;
    max_token_bytes_ = std::max(max_token_bytes_, static_cast<int>(bytes.size()));
  }
  close_to(0);
  nodes_.push_back({.end = 0, .first_token = static_cast<int32_t>(tokens_.size()), .depth = 0, .byte = 0});
}

std::optional<int32_t> TokenTrie::find(std::string_view bytes) const {
  auto at = static_cast<int32_t>(0);
  auto end = static_cast<int32_t>(nodes().size());
  std::optional<int32_t> found;
  for (const char c : bytes) {
    while (at < end && nodes_[static_cast<size_t>(at)].byte != static_cast<uint8_t>(c))
      at = nodes_[static_cast<size_t>(at)].end;
    if (at >= end) return std::nullopt;
    found = at;
    end = nodes_[static_cast<size_t>(at)].end;
    ++at;
  }
  return found;
}

}  // namespace longspan::text
