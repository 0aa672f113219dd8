// Sizes and durations as people write them: "64GiB", "1800s", 1.50 GiB.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longspan {

size_t parse_bytes(std::string_view text);    // "64GiB", "512 MB", "4096"; throws kInvalid
double parse_seconds(std::string_view text);  // "30s", "500ms", "10m", "2h", "1800"; throws kInvalid
std::string format_bytes(size_t bytes);       // "24.4 MiB", binary units, three digits
std::string format_count(size_t count);       // "131,072"
std::string format_seconds(double seconds);   // "12.3 ms", "4.56 s", "2 min 5 s"

}  // namespace longspan
