// What one rendering may cost. A hostile or broken template ends with an Error that names the limit it hit.
#pragma once

#include <cstddef>

#include "core/error.h"

namespace longspan::text::jinja {

struct Limits {
  size_t max_steps = 50'000'000;                // evaluated nodes, loop turns, visited elements
  size_t max_built_bytes = size_t{1} << 30;     // sum of all strings and lists that operations produce
  size_t max_output_bytes = size_t{256} << 20;  // the rendered text, or the text of one macro or block
  int max_depth = 400;                          // nested statements, expressions and macro calls at run time
};

// Counters of one rendering. Not thread-safe: one per render call.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  void step(size_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.max_steps)
      fail(ErrorKind::kInvalid, "too much work: more than max_steps = {} steps", limits_.max_steps);
  }

  // Call before producing `count` elements of `size_bytes` each.
  void build(size_t count, size_t size_bytes = 1) {
    const size_t left = limits_.max_built_bytes - built_bytes_;
    if (size_bytes != 0 && count > left / size_bytes)
      fail(ErrorKind::kInvalid, "too much memory: more than max_built_bytes = {} bytes built",
           limits_.max_built_bytes);
    built_bytes_ += count * size_bytes;
  }

  const Limits& limits() const { return limits_; }

 private:
  Limits limits_;
  size_t steps_ = 0;
  size_t built_bytes_ = 0;
};

}  // namespace longspan::text::jinja
