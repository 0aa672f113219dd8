#include "cli/input.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "core/error.h"
#include "text/utf8.h"

namespace longspan::cli {

std::string read_file(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  if (std::filesystem::is_directory(path)) fail(ErrorKind::kInvalid, "{} is a directory: need a file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorKind::kNotFound, "cannot open {}", path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) fail(ErrorKind::kEnvironment, "cannot read {}", path);
  return text;
}

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  text::validate_utf8(text, path == "-" ? "standard input" : path);
  return text;
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& what) {
  constexpr const char* kSpace = " \t\r\n";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kSpace); at != std::string::npos;
       at = text.find_first_not_of(kSpace, at)) {
    const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    int32_t id = 0;
    const auto [rest, status] = std::from_chars(text.data() + at, text.data() + end, id);
    if (status != std::errc() || rest != text.data() + end)
      fail(ErrorKind::kInvalid, "{}: got '{}' as number {}, need a token id", what,
           text.substr(at, std::min<size_t>(end - at, 40)), ids.size() + 1);
    ids.push_back(id);
    at = end;
  }
  return ids;
}

std::vector<int32_t> read_ids(const std::string& path) { return parse_ids(read_file(path), path); }

}  // namespace longspan::cli
