// BenchPrompt: one request of a benchmark before it is sent.
#pragma once

#include <cstdint>
#include <string>

namespace longspan::measure {

struct BenchPrompt {
  std::string text;
  int64_t num_tokens = 0;  // as the endpoint will count them, template included; 0: not known
  int64_t max_output_tokens = 0;
};

}  // namespace longspan::measure
