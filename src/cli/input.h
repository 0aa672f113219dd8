// Prompts from flags and files, checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan::cli {

std::string read_file(const std::string& path);  // "-" is standard input; throws kNotFound, kInvalid
std::string read_text(const std::string& path);  // valid UTF-8 or kInvalid with the offset
// Whitespace-separated integers. Throws kInvalid naming file and place.
std::vector<int32_t> read_ids(const std::string& path);
std::vector<int32_t> parse_ids(const std::string& text, const std::string& what);

}  // namespace longspan::cli
