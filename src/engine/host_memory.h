// How much memory this process may still take: the machine's, or less where a cgroup says so.
#pragma once

#include <cstddef>

namespace longspan::engine {

size_t available_memory_bytes();
size_t resident_bytes();       // of this process
size_t peak_resident_bytes();  // the most it has been

}  // namespace longspan::engine
