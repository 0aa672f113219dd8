// ToolParser: finds the tool calls in the streamed content of a Qwen3-Coder style model:
//   <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ... </function> </tool_call>
// The result does not depend on how the text is cut into pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tag_scanner.h"
#include "text/tool_schema.h"

namespace longspan::text {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as text; keys in the order of the model
};

// Either content, never empty, or one complete call.
using ToolEvent = std::variant<std::string, ToolCall>;

enum class AnswerEnd : uint8_t { kComplete, kCut };  // kCut: the token limit ended it

// "call_" and 24 random hexadecimal digits.
std::string make_call_id();

// Not thread-safe: one per answer. A call comes out in one piece, when its end is known: what a client sees
// is always complete JSON.
//
// Tolerated: a missing </parameter>, </function> or </tool_call>; a missing '>' after a name; a missing
// <tool_call> in front of a known function; closing tags inside of values (a tag closes only if the next
// structural tag, or the end, follows); a call that the model leaves open at the end. A call that the token
// limit cut is dropped, because nobody must execute half of it. White space around calls is not content.
class ToolParser final {
 public:
  explicit ToolParser(ToolSchema schema) : schema_(std::move(schema)) {}

  std::vector<ToolEvent> push(std::string_view text);
  std::vector<ToolEvent> finish(AnswerEnd end);  // call once

 private:
  enum class State : uint8_t {
    kContent,
    kFunctionName,
    kBetweenParameters,
    kParameterName,
    kValue,
    kAfterFunction
  };

  std::vector<ToolEvent> run();
  bool step();  // false: needs more text
  bool step_content();
  bool step_function_name();
  bool step_between_parameters();
  bool step_parameter_name();
  bool step_value();
  bool step_after_function();

  std::optional<std::string> read_name();           // up to '>', taken; none: needs more text
  Match is_bare_call(std::string_view text) const;  // "<function=" of a known tool, without <tool_call>
  Match closes_value(std::string_view text) const;  // does the tag at the start of `text` end the value?
  void take(size_t size) { pending_.erase(0, size); }
  void emit_content(size_t size);  // the first `size` bytes of pending_
  void add_parameter(size_t value_size);
  void emit_call();

  ToolSchema schema_;
  State state_ = State::kContent;
  bool at_end_ = false;
  std::string pending_;      // received, not yet decided
  size_t scanned_ = 0;       // bytes of pending_ that are known to hold no closing tag of the value
  std::string held_spaces_;  // of content: dropped when a call follows
  bool after_call_ = false;  // white space behind a call is dropped
  std::string function_;
  std::string parameter_;
  nlohmann::ordered_json arguments_;
  std::vector<ToolEvent> events_;
};

}  // namespace longspan::text
