// The rules that hold for the shape of the source tree. Each takes the root of a tree and returns one line of
// text for each violation, so that the tests can hand in a small wrong tree as well as this repository.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace longspan::structure {

using Violations = std::vector<std::string>;

// Includes run downwards along the table of rooms (rules.cc), are rooted at src/, and name a room.
Violations include_table(const std::filesystem::path& root);

// JSON is seen by the rooms that read or write it (io, text, server and above), never by those between.
Violations json_borders(const std::filesystem::path& root);

// Conditional compilation on a vendor or an instruction set stays in vendor.h, simd.h and flags.
Violations vendor_conditionals(const std::filesystem::path& root);

// Device code says kWarpSize, full_mask(): no literal 31, 32, 5 or 0xffffffff that stands for a warp.
Violations magic_warp_numbers(const std::filesystem::path& root);

inline constexpr int kMaxFileLines = 700;
Violations long_files(const std::filesystem::path& root);

// Each .cc and .cu below src, tests, fuzz and bench is named in a CMake file, so that nothing rots unbuilt.
Violations unlisted_sources(const std::filesystem::path& root);

// No tracked text names a folder of the machine it was written on. Fixtures, models and examples are data.
Violations machine_paths(const std::filesystem::path& root, const std::vector<std::string>& tracked);

inline constexpr int64_t kMaxTreeBytes = 60'000'000;
Violations large_tree(const std::filesystem::path& root, const std::vector<std::string>& tracked);

}  // namespace longspan::structure
