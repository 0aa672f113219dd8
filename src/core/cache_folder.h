// Where this program keeps what it measured once: $XDG_CACHE_HOME/longspan or ~/.cache/longspan.
#pragma once

#include <filesystem>
#include <string_view>

namespace longspan {

std::filesystem::path cache_folder();  // empty where there is no home; may not exist yet

// Writes the whole file or none of it, and the folders above it. Throws kEnvironment.
void write_whole_file(const std::filesystem::path& path, std::string_view text);

}  // namespace longspan
