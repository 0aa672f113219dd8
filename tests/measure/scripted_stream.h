// Event streams written by hand, each piece with the time it comes at.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "measure/answer_record.h"

namespace longspan::testing {

using Script = std::vector<std::pair<int, std::string>>;  // (ms since the request, bytes)

inline const std::string kDone = "data: [DONE]\n\n";

inline std::string chat_chunk(const std::string& delta, const std::string& finish_reason = "") {
  return R"(data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":)" + delta + R"(,"finish_reason":)" +
         (finish_reason.empty() ? "null" : "\"" + finish_reason + "\"") + "}]}\n\n";
}

inline std::string completion_chunk(const std::string& text, const std::string& finish_reason = "") {
  return R"(data: {"id":"cmpl-1","choices":[{"index":0,"text":")" + text + R"(","finish_reason":)" +
         (finish_reason.empty() ? "null" : "\"" + finish_reason + "\"") + "}]}\n\n";
}

inline std::string usage_chunk(int prompt, int completion, int cached = 0) {
  return R"(data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":)" + std::to_string(prompt) +
         R"(,"completion_tokens":)" + std::to_string(completion) +
         R"(,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(cached) + "}}}\n\n";
}

inline measure::AnswerRecord timed(measure::BenchEndpoint endpoint, const Script& script) {
  measure::AnswerTimer timer(endpoint);
  for (const auto& [ms, piece] : script) timer.on_piece(ms / 1000.0, piece);
  return timer.finish("");
}

}  // namespace longspan::testing
