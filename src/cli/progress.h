// Load progress for people: a bar on a terminal, a plain line now and then elsewhere. Standard error.
#pragma once

#include <cstddef>
#include <functional>

namespace longspan::cli {

std::function<void(size_t done_bytes, size_t total_bytes)> load_progress();

}  // namespace longspan::cli
