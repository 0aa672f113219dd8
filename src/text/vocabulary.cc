#include "text/vocabulary.h"

#include <algorithm>

#include "core/error.h"

namespace longspan::text {

Vocabulary::Vocabulary(const std::vector<Entry>& entries) {
  int32_t max_id = -1;
  for (const Entry& entry : entries) {
    CHECK(entry.id >= 0 && entry.id <= kMaxTokenId);
    max_id = std::max(max_id, entry.id);
  }
  std::vector<const Entry*> by_id(static_cast<size_t>(max_id + 1));
  size_t num_bytes = 0;
  for (const Entry& entry : entries) {
    by_id[static_cast<size_t>(entry.id)] = &entry;
    num_bytes += entry.bytes.size();
  }
  arena_.reserve(num_bytes);
  offsets_.push_back(0);
  for (const Entry* entry : by_id) {
    if (entry) arena_.insert(arena_.end(), entry->bytes.begin(), entry->bytes.end());
    offsets_.push_back(arena_.size());
  }
  ids_.reserve(entries.size());
  for (const Entry& entry : entries) {
    if (entry.is_mergeable) ids_.emplace(bytes(entry.id), entry.id);
  }
}

}  // namespace longspan::text
