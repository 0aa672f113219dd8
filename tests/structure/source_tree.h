// Reading the repository as text: which files there are, and their lines. Knows nothing of any rule.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::structure {

struct Line {
  int number;
  std::string text;
};

// Files below root/folder whose extension is one of `extensions` (".cc"), as sorted paths relative to root.
// A folder that does not exist has no files.
std::vector<std::string> files_below(const std::filesystem::path& root, std::string_view folder,
                                     const std::vector<std::string>& extensions);

std::string read_text(const std::filesystem::path& path);

std::vector<Line> lines_of(const std::filesystem::path& path);

// The path between the quotes of an `#include "..."` line, or between the angle brackets of a system include.
std::optional<std::string> quoted_include(std::string_view line);
std::optional<std::string> system_include(std::string_view line);

// The line without its // comment and without the contents of its string literals.
std::string code_of(std::string_view line);

// Tracked files relative to root; nothing where root is no Git work tree or git is missing.
std::optional<std::vector<std::string>> tracked_files(const std::filesystem::path& root);

}  // namespace longspan::structure
