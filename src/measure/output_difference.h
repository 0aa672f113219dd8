// OutputDifference: where the answers of two runs of the same prompts part. A fast path that changes an
// answer is no fast path.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace longspan::measure {

struct OutputDifference {
  size_t request = 0;  // index
  std::string bucket;
  std::string what;       // "text", "reasoning", "tool_calls" or "tokens" (the same text, another count)
  size_t first_char = 0;  // of the first character that differs; characters, not bytes
  std::string a;          // from there on, a little
  std::string b;
  int64_t tokens_a = 0;
  int64_t tokens_b = 0;
};

struct ComparedOutputs {
  size_t num_compared = 0;  // requests that both runs answered
  std::vector<OutputDifference> differences;
};

// Of two end-to-end results. vLLM's own files hold outputs only when they were saved in detail.
ComparedOutputs compare_outputs(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

// Characters in front of the first that differs; none when the texts are equal.
std::optional<size_t> first_difference(const std::string& a, const std::string& b);

}  // namespace longspan::measure
