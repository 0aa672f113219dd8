// Progress of a long piece of work for people: a bar on a terminal, a plain line now and then elsewhere.
// Standard error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace longspan::cli {

enum class ProgressUnit : uint8_t { kBytes, kItems };

// `what` is "loading weights", "quantising". The end of the work ends the bar's line.
std::function<void(size_t done, size_t total)> progress(std::string what,
                                                        ProgressUnit unit = ProgressUnit::kBytes);
inline std::function<void(size_t done_bytes, size_t total_bytes)> load_progress() {
  return progress("loading weights");
}

}  // namespace longspan::cli
