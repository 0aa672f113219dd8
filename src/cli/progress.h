// Progress of a long piece of work for people: a bar on a terminal, a plain line now and then elsewhere.
// Standard error.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace longspan::cli {

// `what` is "loading weights", "quantising".
std::function<void(size_t done_bytes, size_t total_bytes)> progress(std::string what);
inline std::function<void(size_t done_bytes, size_t total_bytes)> load_progress() {
  return progress("loading weights");
}

}  // namespace longspan::cli
