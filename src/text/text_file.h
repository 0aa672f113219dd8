// Reads a whole file of a model directory.
#pragma once

#include <filesystem>
#include <string>

namespace longspan::text {

inline constexpr size_t kMaxTextFileBytes = size_t{512} << 20;  // the largest tokenizer.json known has 35 MB

// Throws kNotFound when there is no such file, kInvalid above kMaxTextFileBytes, kEnvironment when reading
// fails.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace longspan::text
