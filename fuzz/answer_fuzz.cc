// Any bytes as an answer of a model: reasoning and tool calls do not depend on how the text is cut into
// pieces.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/reasoning_parser.h"
#include "text/tool_parser.h"

namespace {

using namespace longspan;
using namespace longspan::text;

struct Answer {
  std::string reasoning, content, calls;
  bool operator==(const Answer&) const = default;
};

class Reader {
 public:
  Reader(const ToolSchema& schema, bool in_reasoning) : reasoning_(in_reasoning), tools_(schema) {}

  void push(std::string_view text) { add(reasoning_.push(text)); }
  Answer finish(AnswerEnd end) {
    add(reasoning_.finish());
    add(tools_.finish(end));
    return answer_;
  }

 private:
  void add(const std::vector<ReasoningEvent>& events) {
    for (const ReasoningEvent& event : events) {
      CHECK(!event.text.empty());
      if (event.kind == ReasoningEvent::Kind::kReasoning) {
        answer_.reasoning += event.text;
      } else {
        add(tools_.push(event.text));
      }
    }
  }
  void add(const std::vector<ToolEvent>& events) {
    for (const ToolEvent& event : events) {
      if (const auto* call = std::get_if<ToolCall>(&event)) {
        CHECK(!call->name.empty() && nlohmann::json::accept(call->arguments));
        answer_.calls += call->name + call->arguments + "\n";
      } else {
        CHECK(!std::get<std::string>(event).empty());
        answer_.content += std::get<std::string>(event);
      }
    }
  }

  ReasoningParser reasoning_;
  ToolParser tools_;
  Answer answer_;
};

}  // namespace

// Bytes: flags, size of the pieces, then the text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  static const ToolSchema kSchema(nlohmann::ordered_json::parse(R"([{"function": {"name": "f", "parameters": {
    "properties": {"s": {"type": "string"}, "i": {"type": ["integer", "null"]}, "o": {"type": "object"}}}}}])"));
  const bool in_reasoning = (data[0] & 1) != 0;
  const AnswerEnd end = (data[0] & 2) != 0 ? AnswerEnd::kCut : AnswerEnd::kComplete;
  const size_t piece_size = 1 + data[1] % 16;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);

  Reader whole(kSchema, in_reasoning);
  whole.push(text);
  const Answer want = whole.finish(end);
  Reader pieces(kSchema, in_reasoning);
  for (size_t at = 0; at < text.size(); at += piece_size) pieces.push(text.substr(at, piece_size));
  CHECK(pieces.finish(end) == want);
  return 0;
}
