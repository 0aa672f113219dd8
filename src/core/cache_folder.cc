#include "core/cache_folder.h"

#include <cstdlib>
#include <fstream>

#include "core/error.h"

namespace longspan {

namespace fs = std::filesystem;

fs::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "longspan";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != 0 ? fs::path(home) / ".cache/longspan" : fs::path();
}

void write_whole_file(const fs::path& path, std::string_view text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path draft = path.string() + ".draft";
  std::ofstream(draft) << text;
  fs::rename(draft, path, error);  // readers see a whole file or none
  if (error)
    fail(ErrorKind::kEnvironment, "{}: {}; set XDG_CACHE_HOME to a folder that can be written", path.string(),
         error.message());
}

}  // namespace longspan
