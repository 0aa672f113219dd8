// AnswerRecord: what one request of a benchmark got back, and when. AnswerTimer makes one from the bytes of
// an event stream and the times they came at; it has no clock and no socket, so that every definition can be
// tested to the millisecond. All times are seconds since the request was sent.
//
//   ttfr  the first byte of the body, be it a comment or the role: the server is there
//   ttft  the first chunk that holds text, reasoning or a tool call: the role chunk holds none
//   itl   between one such chunk and the next
//   e2el  the last chunk with a choice: the last text, or the finish reason behind it
//   tpot  (e2el - ttft) / (output tokens - 1); none for fewer than two tokens
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_client.h"

namespace longspan::measure {

enum class BenchEndpoint : uint8_t { kChat, kCompletions };

struct AnswerRecord {
  std::string error;  // empty: the request succeeded
  std::string id;     // the server's
  std::string text;
  std::string reasoning;
  std::string tool_calls;  // names and arguments in the order they came
  std::string finish_reason;
  int64_t num_chunks = 0;  // that held content
  // From the usage chunk; not every server sends one.
  std::optional<int64_t> prompt_tokens;
  std::optional<int64_t> completion_tokens;
  std::optional<int64_t> cached_tokens;

  double start_s = 0;  // since the round began
  double ttfr_s = 0;
  double ttft_s = 0;
  double e2el_s = 0;
  std::vector<double> itls_s;

  bool ok() const { return error.empty(); }
  // Of the usage; without one, a token a chunk.
  int64_t num_output_tokens() const { return completion_tokens.value_or(num_chunks); }
  std::optional<double> tpot_s() const;
};

class AnswerTimer final {
 public:
  explicit AnswerTimer(BenchEndpoint endpoint) : endpoint_(endpoint) {}

  // Bytes of the body, cut anywhere, that came at `seconds`.
  void on_piece(double seconds, std::string_view piece);
  // `error`: what ended the request before its stream's end; empty when nothing did. The stream itself may
  // still say that the request failed: an error event, no end, no content.
  AnswerRecord finish(std::string error);

 private:
  void on_event(double seconds, std::string_view data);
  void on_choice(double seconds, const nlohmann::json& choice);
  void on_usage(const nlohmann::json& usage);

  const BenchEndpoint endpoint_;
  server::EventReader events_;
  AnswerRecord record_;
  std::optional<double> last_content_s_;
  bool any_byte_ = false;
  bool ended_ = false;  // [DONE] or a finish reason came
};

}  // namespace longspan::measure
