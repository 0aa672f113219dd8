#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "measure/report_page.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMaxFolders = 2;  // deep

std::string name_of_result(const fs::path& path, const fs::path& folder, const Json& json) {
  if (json.contains("label") && json["label"].is_string()) return json["label"];
  if (json.value("kind", "") == "profile" && json.contains("name") && json["name"].is_string())
    return json["name"];
  fs::path relative = path.lexically_relative(folder);
  return relative.replace_extension().string();
}

// A file written by hand or by another program may hold members of other types: a page of it alone would
// tell.
bool add_if_readable(std::vector<SavedResult>& list, const fs::path& path, const fs::path& folder,
                     Json json) {
  try {
    SavedResult result{.name = name_of_result(path, folder, json), .json = {}};
    result.json = std::move(json);
    report_html({.serving = {result},
                 .profiles = {result},
                 .contexts = {result},
                 .kernels = {result},
                 .skipped = {}});
    list.push_back(std::move(result));
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

void sort_by(std::vector<SavedResult>& results, const char* key) {
  std::stable_sort(results.begin(), results.end(), [&](const SavedResult& a, const SavedResult& b) {
    return a.json.value(key, Json()) < b.json.value(key, Json());
  });
}

}  // namespace

ReportSources read_report_sources(const fs::path& folder) {
  if (!fs::is_directory(folder)) fail(ErrorKind::kNotFound, "{}: no such folder", folder.string());
  std::vector<fs::path> paths;
  for (auto at = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied);
       at != fs::recursive_directory_iterator(); ++at) {
    if (at.depth() >= kMaxFolders) at.disable_recursion_pending();
    if (at->is_regular_file() && at->path().extension() == ".json") paths.push_back(at->path());
  }
  std::sort(paths.begin(), paths.end());
  ReportSources sources;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      sources.skipped.push_back(path.lexically_relative(folder).string());
      continue;
    }
    const Json kind = json.value("kind", Json());
    const bool serves = kind == "end_to_end" || (kind.is_null() && json.contains("output_throughput"));
    std::vector<SavedResult>* list = serves              ? &sources.serving
                                     : kind == "profile" ? &sources.profiles
                                     : kind == "context" ? &sources.contexts
                                     : kind == "kernel"  ? &sources.kernels
                                                         : nullptr;
    if (list == nullptr || !add_if_readable(*list, path, folder, std::move(json)))
      sources.skipped.push_back(path.lexically_relative(folder).string());
  }
  sort_by(sources.serving, "date");
  sort_by(sources.profiles, "started_unix_seconds");
  return sources;
}

}  // namespace longspan::measure
