// Counts what the whole program takes from operator new.
#pragma once

#include <cstdint>

namespace longspan {
int64_t num_allocations();  // so far
}  // namespace longspan
