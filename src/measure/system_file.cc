#include "measure/system_file.h"

#include <charconv>
#include <fstream>

namespace longspan::measure {

std::optional<std::string> read_system_file(const std::filesystem::path& path) {
  constexpr size_t kMaxBytes = size_t{4} << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  char piece[4096];
  // Files of /proc say that they have no size: read until they end.
  while (text.size() < kMaxBytes && (file.read(piece, sizeof(piece)), file.gcount() > 0))
    text.append(piece, static_cast<size_t>(file.gcount()));
  if (file.bad()) return std::nullopt;
  return text;
}

std::string read_system_file_or_empty(const std::filesystem::path& path) {
  std::string text = read_system_file(path).value_or("");
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '\0')) text.pop_back();
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = line.find_first_not_of(" \t"); at != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(" \t", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(" \t", end);
  }
  return words;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::optional<std::string_view> value_after(std::string_view text, std::string_view name) {
  for (std::string_view line : lines_of(text)) {
    if (!line.starts_with(name)) continue;
    line = trimmed(line.substr(name.size()));
    if (!line.empty() && line.front() == ':') line = trimmed(line.substr(1));
    return line;
  }
  return std::nullopt;
}

std::optional<int64_t> integer_of(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

}  // namespace longspan::measure
