// Small text files of the system (/proc, /sys, /etc): whole, or as lines of "name value". All paths lie below
// a root that tests choose.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::measure {

// None where there is no such file or it may not be read. At most 4 MiB.
std::optional<std::string> read_system_file(const std::filesystem::path& path);
std::string read_system_file_or_empty(const std::filesystem::path& path);  // trailing white space removed

std::vector<std::string_view> lines_of(std::string_view text);
std::vector<std::string_view> words_of(std::string_view line);
std::string_view trimmed(std::string_view text);

// What follows `name` (and a colon, where there is one) on the first line that begins with it; trimmed.
std::optional<std::string_view> value_after(std::string_view text, std::string_view name);
std::optional<int64_t> integer_of(std::string_view text);  // leading digits; none where there are none

// A path inside the system, below `root`.
inline std::filesystem::path below(const std::filesystem::path& root, std::string_view path) {
  while (!path.empty() && path.front() == '/') path.remove_prefix(1);
  return root / path;
}

}  // namespace longspan::measure
