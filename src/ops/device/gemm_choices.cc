#include "ops/device/gemm_choices.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "core/cache_folder.h"
#include "core/error.h"
#include "core/log.h"

namespace longspan::ops::device {

// A line: "<choice> <key>".
GemmChoices::GemmChoices(std::filesystem::path file) : file_(std::move(file)) {
  std::ifstream in(file_);
  for (std::string line; lines_.size() < kMaxGemmChoices && std::getline(in, line);) {
    int32_t choice = 0;
    const char* const end = line.data() + line.size();
    const auto [rest, status] = std::from_chars(line.data(), end, choice);
    if (status == std::errc() && rest != end && *rest == ' ') lines_.emplace_back(rest + 1, choice);
  }
}

std::optional<int32_t> GemmChoices::find(const std::string& key) const {
  const auto found = std::ranges::find(lines_, key, &std::pair<std::string, int32_t>::first);
  return found == lines_.end() ? std::nullopt : std::optional(found->second);
}

void GemmChoices::store(const std::string& key, int32_t choice) {
  std::erase_if(lines_, [&](const auto& line) { return line.first == key; });
  if (lines_.size() == kMaxGemmChoices) lines_.erase(lines_.begin());
  lines_.emplace_back(key, choice);
  if (file_.empty()) return;
  std::string text;
  for (const auto& [name, value] : lines_) text += fmt::format("{} {}\n", value, name);
  try {
    write_whole_file(file_, text);
  } catch (const Error& error) {
    if (!std::exchange(told_, true))
      log(LogLevel::kWarn, "choices of kernels are measured at every start: {}", error.what());
  }
}

}  // namespace longspan::ops::device
