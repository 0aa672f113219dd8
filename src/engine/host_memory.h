// How much memory this process may still take: the machine's, or less where a cgroup says so.
#pragma once

#include <cstddef>
#include <filesystem>

namespace longspan::engine {

// By /proc/meminfo and the limits of this process's cgroup and those above it, version 2 or 1. `root` is
// where /proc and /sys lie: other than "/" in tests only.
size_t available_memory_bytes(const std::filesystem::path& root = "/");
size_t resident_bytes();       // of this process
size_t peak_resident_bytes();  // the most it has been

}  // namespace longspan::engine
