#include "structure/rules.h"

#include <algorithm>
#include <map>
#include <regex>

#include "structure/source_tree.h"

namespace longspan::structure {

namespace fs = std::filesystem;

namespace {

// Room -> what it may include besides itself: a room, or the beginning of a path inside a room. A room inside
// a room ("ops/device") is its own row: it sees its parent only where its row says so. The order is the order
// of the rooms: each row names earlier rows only.
struct Row {
  std::string room;
  std::vector<std::string> may_include;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"core", {}},
      {"io", {"core"}},
      {"text", {"core"}},
      {"cache", {"core"}},
      {"schedule", {"core", "cache"}},
      {"ops/device", {"core", "ops/ops.h", "ops/draw.h"}},
      {"ops", {"core", "ops/device"}},
      {"model", {"core", "io", "ops", "cache"}},
      {"engine", {"core", "io", "cache", "schedule", "ops", "ops/device", "model"}},
      {"server", {"core", "text", "engine"}},
      {"gateway", {"core", "server/http"}},
      {"measure",
       {"core", "io", "text", "cache", "schedule", "ops", "ops/device", "model", "engine", "server"}},
      {"cli",
       {"core", "io", "text", "cache", "schedule", "ops", "ops/device", "model", "engine", "server",
        "gateway", "measure"}},
  };
  return rows;
}

const std::vector<std::string> kRoomsWithoutJson = {"core", "cache", "schedule", "ops/device",
                                                    "ops",  "model", "engine"};
const std::vector<std::string> kSources = {".h", ".cc", ".cuh", ".cu"};

bool begins_with_path(std::string_view path, std::string_view prefix) {
  if (path.substr(0, prefix.size()) != prefix) return false;
  return path.size() == prefix.size() || path[prefix.size()] == '/';
}

// The row of the innermost room that holds `path` ("ops/device/x.cuh" -> ops/device), or null.
const Row* room_of(std::string_view path) {
  const Row* best = nullptr;
  for (const Row& row : table()) {
    if (begins_with_path(path, row.room) && (!best || row.room.size() > best->room.size())) best = &row;
  }
  return best;
}

bool allowed(const Row& from, const Row& to, std::string_view included) {
  if (&from == &to) return true;
  return std::any_of(from.may_include.begin(), from.may_include.end(), [&](const std::string& entry) {
    const bool is_part_of_room = room_of(entry) != nullptr && room_of(entry)->room != entry;
    return is_part_of_room ? included.substr(0, entry.size()) == entry : to.room == entry;
  });
}

std::string place(std::string_view file, int line) {
  return std::string(file) + ":" + std::to_string(line) + ": ";
}

std::vector<std::string> all_sources(const fs::path& root) {
  std::vector<std::string> files;
  for (const char* folder : {"src", "tests", "fuzz", "bench"}) {
    const std::vector<std::string> found = files_below(root, folder, kSources);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

Violations lines_matching(const fs::path& root, const std::string& file, const std::regex& pattern,
                          std::string_view complaint) {
  Violations found;
  for (const Line& line : lines_of(root / file)) {
    std::smatch match;
    const std::string code = code_of(line.text);
    if (std::regex_search(code, match, pattern)) {
      found.push_back(place(file, line.number) + match.str() + ": " + std::string(complaint));
    }
  }
  return found;
}

}  // namespace

Violations include_table(const fs::path& root) {
  Violations found;
  for (const std::string& file : files_below(root, "src", kSources)) {
    const Row* from = room_of(std::string_view(file).substr(std::string_view("src/").size()));
    if (from == nullptr) {
      found.push_back(file + ": lies in no room of the table");
      continue;
    }
    for (const Line& line : lines_of(root / file)) {
      const std::optional<std::string> included = quoted_include(line.text);
      if (!included) continue;
      const Row* to = room_of(*included);
      if (to == nullptr) {
        found.push_back(place(file, line.number) + "\"" + *included + "\" begins with no room of the table");
      } else if (!allowed(*from, *to, *included)) {
        found.push_back(place(file, line.number) + from->room + " may not include \"" + *included + "\"");
      }
    }
  }
  return found;
}

Violations json_borders(const fs::path& root) {
  Violations found;
  for (const std::string& room : kRoomsWithoutJson) {
    for (const std::string& file : files_below(root, "src/" + room, kSources)) {
      for (const Line& line : lines_of(root / file)) {
        const std::string name = system_include(line.text).value_or(quoted_include(line.text).value_or(""));
        const bool is_json = begins_with_path(name, "nlohmann") || name == "io/json.h";
        if (is_json) found.push_back(place(file, line.number) + room + " may not see JSON (" + name + ")");
      }
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());  // ops/device is also below ops
  return found;
}

Violations vendor_conditionals(const fs::path& root) {
  static const std::regex pattern(
      R"re(^\s*#\s*(if|ifdef|ifndef|elif)\b.*(__CUDA|__HIP|__NVCC|__gfx|__GFX|__AMDGCN|__x86_64|__i386|__SSE|__AVX|__FMA__|__F16C|__aarch64|__ARM|LONGSPAN_CUDA|LONGSPAN_HIP))re");
  Violations found;
  for (const std::string& file : files_below(root, "src", kSources)) {
    const std::string stem = fs::path(file).stem();
    if (stem == "vendor" || stem == "simd" || stem == "flags") continue;
    const Violations here = lines_matching(root, file, pattern, "belongs in vendor.h, simd.h or flags");
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

Violations magic_warp_numbers(const fs::path& root) {
  static const std::regex pattern(
      R"re(0x[fF]{8}\b|[%/&] ?3[12]\b|(<<|>>) ?5\b|(^|[^.\w])warpSize\b|\b32 ?- ?1\b)re");
  Violations found;
  for (const std::string& file : files_below(root, "src/ops/device", kSources)) {
    const std::string stem = fs::path(file).stem();
    if (stem == "vendor") continue;  // where kWarpSize and full_mask() are made
    if (stem == "hopper") continue;  // registers of assembly have numbers
    const Violations here = lines_matching(root, file, pattern, "say kWarpSize, lane_mask_t or full_mask()");
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

Violations long_files(const fs::path& root) {
  Violations found;
  for (const std::string& file : all_sources(root)) {
    const size_t lines = lines_of(root / file).size();
    if (lines > kMaxFileLines) {
      found.push_back(file + ": got " + std::to_string(lines) + " lines, need at most " +
                      std::to_string(kMaxFileLines));
    }
  }
  return found;
}

Violations unlisted_sources(const fs::path& root) {
  std::map<fs::path, std::string> cmake_text;  // folder -> its CMake files
  for (const char* folder : {"src", "tests", "fuzz", "bench"}) {
    for (const std::string& file : files_below(root, folder, {".txt", ".cmake"})) {
      const fs::path path(file);
      if (path.filename() == "CMakeLists.txt" || path.extension() == ".cmake") {
        cmake_text[path.parent_path()] += read_text(root / path) + "\n";
      }
    }
  }
  Violations found;
  for (const std::string& file : all_sources(root)) {
    const fs::path path(file);
    if (path.extension() != ".cc" && path.extension() != ".cu") continue;
    const bool listed = std::any_of(cmake_text.begin(), cmake_text.end(), [&](const auto& entry) {
      const std::string name = path.lexically_relative(entry.first).string();
      const std::string escaped = std::regex_replace(name, std::regex(R"([.+])"), R"(\$&)");
      const std::regex word("(^|[^A-Za-z0-9_./-]|\\}/)" + escaped + "($|[^A-Za-z0-9_.-])");
      return name.substr(0, 2) != ".." && std::regex_search(entry.second, word);
    });
    if (!listed) found.push_back(file + ": no CMake file beside or above it names it");
  }
  return found;
}

Violations machine_paths(const fs::path& root, const std::vector<std::string>& tracked) {
  // Written in pieces so that this file does not refuse itself.
  static const std::regex pattern(R"re((^|[\s"'=(:`]))re"
                                  "/(root|work|home)/"
                                  "[A-Za-z0-9_]");
  Violations found;
  for (const std::string& file : tracked) {
    const bool is_data = begins_with_path(file, "tests/fixtures") || begins_with_path(file, "models") ||
                         begins_with_path(file, "examples") || begins_with_path(file, "fuzz/seeds");
    if (is_data || !fs::is_regular_file(root / file)) continue;
    for (const Line& line : lines_of(root / file)) {
      if (std::regex_search(line.text, pattern)) found.push_back(place(file, line.number) + line.text);
    }
  }
  return found;
}

Violations large_tree(const fs::path& root, const std::vector<std::string>& tracked) {
  int64_t bytes = 0;
  for (const std::string& file : tracked) {
    if (fs::is_regular_file(root / file)) bytes += static_cast<int64_t>(fs::file_size(root / file));
  }
  if (bytes <= kMaxTreeBytes) return {};
  return {"tracked files: got " + std::to_string(bytes) + " bytes, need at most " +
          std::to_string(kMaxTreeBytes)};
}

}  // namespace longspan::structure
