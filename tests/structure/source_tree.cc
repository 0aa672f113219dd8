#include "structure/source_tree.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>
#include <sstream>

namespace longspan::structure {

namespace fs = std::filesystem;

namespace {

std::optional<std::string> first_group(std::string_view line, const std::regex& pattern) {
  std::match_results<std::string_view::const_iterator> match;
  if (!std::regex_search(line.begin(), line.end(), match, pattern)) return std::nullopt;
  return match[1].str();
}

}  // namespace

std::vector<std::string> files_below(const fs::path& root, std::string_view folder,
                                     const std::vector<std::string>& extensions) {
  std::vector<std::string> files;
  if (!fs::exists(root / folder)) return files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
    const bool wanted =
        std::find(extensions.begin(), extensions.end(), entry.path().extension()) != extensions.end();
    if (entry.is_regular_file() && wanted) files.push_back(entry.path().lexically_relative(root).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<Line> lines_of(const fs::path& path) {
  std::vector<Line> lines;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);)
    lines.push_back({static_cast<int>(lines.size()) + 1, text});
  return lines;
}

std::optional<std::string> quoted_include(std::string_view line) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*"([^"]*)")re");
  return first_group(line, pattern);
}

std::optional<std::string> system_include(std::string_view line) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*<([^>]*)>)re");
  return first_group(line, pattern);
}

std::string code_of(std::string_view line) {
  std::string code;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (in_string && line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      in_string = !in_string;
      code += '"';
    } else if (!in_string && line.substr(i, 2) == "//") {
      break;
    } else if (!in_string) {
      code += line[i];
    }
  }
  return code;
}

std::optional<std::vector<std::string>> tracked_files(const fs::path& root) {
  const std::string command = "git -C '" + root.string() + "' ls-files -z 2>/dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string names;
  char block[4096];
  for (size_t n; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) names.append(block, n);
  if (pclose(pipe) != 0) return std::nullopt;

  std::vector<std::string> files;
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, '\0');) files.push_back(name);
  return files;
}

}  // namespace longspan::structure
