// Which kernel won a product's trial on this machine, kept in a file so that a start does not measure again,
// and so that two starts give the same bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace longspan::ops::device {

// Not thread-safe. Of two processes that write, the last one's file stays; nobody reads half a file.
class GemmChoices final {
 public:
  // Reads what is there; an unreadable line is none. Empty path: nothing is kept.
  explicit GemmChoices(std::filesystem::path file);

  // key: one line that says library, device and shape.
  std::optional<int32_t> find(const std::string& key) const;
  // Also into the file; that it cannot be written is logged once.
  void store(const std::string& key, int32_t choice);

 private:
  std::filesystem::path file_;
  std::vector<std::pair<std::string, int32_t>> lines_;  // oldest first
  bool told_ = false;
};

inline constexpr size_t kMaxGemmChoices = 1000;  // lines of the file; then the oldest goes

}  // namespace longspan::ops::device
