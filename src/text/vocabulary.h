// Vocabulary: the bytes of every token, by id, and the way back for the tokens that merging can produce.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace longspan::text {

inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;  // larger ids in a file are refused

// Immutable after construction. Movable: the views stay valid.
class Vocabulary final {
 public:
  struct Entry {
    int32_t id;              // 0 .. kMaxTokenId, unique
    std::string_view bytes;  // copied
    bool is_mergeable;       // take part in find()
  };
  explicit Vocabulary(const std::vector<Entry>& entries);

  // One past the largest id.
  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  // Empty for an id that no token has.
  std::string_view bytes(int32_t id) const {
    if (id < 0 || id >= size()) return {};
    const auto i = static_cast<size_t>(id);
    return {arena_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }
  std::optional<int32_t> find(std::string_view bytes) const {
    const auto it = ids_.find(bytes);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  std::vector<char> arena_;
  std::vector<size_t> offsets_;  // [size + 1] into arena_
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace longspan::text
