// ReasoningParser: splits a streamed answer of a Qwen3-style model into reasoning and content.
// The result does not depend on how the text is cut into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::text {

struct ReasoningEvent {
  enum class Kind : uint8_t { kReasoning, kContent };
  Kind kind;
  std::string text;  // never empty
};

// Does generation start inside of an open <think>? Looks at the end of the rendered prompt, so that it holds
// for models of either default.
bool opens_reasoning(std::string_view prompt);

// What a tool call inside of reasoning is.
enum class CallInReasoning : uint8_t { kEndsIt, kIsText };

// Not thread-safe: one per answer.
//
// Inside of reasoning, </think> ends it; so does a tool call that the model began without closing its
// thoughts
// ("<tool_call>" and "<function=" or "<function " with only white space between them), unless calls are text
// there. Reasoning that never ends stays reasoning. A leading <think> starts reasoning in either mode. The
// tags, the newlines around reasoning and those in front of the content are not part of either.
class ReasoningParser final {
 public:
  explicit ReasoningParser(bool starts_in_reasoning, CallInReasoning call = CallInReasoning::kEndsIt)
      : starts_in_reasoning_(starts_in_reasoning), call_(call) {}

  std::vector<ReasoningEvent> push(std::string_view text);
  std::vector<ReasoningEvent> finish();  // what was held back; call once

 private:
  // kBeforeContent skips newlines; kAfterCall is content that may still contain a late </think>.
  enum class State : uint8_t { kStart, kReasoning, kBeforeContent, kContent, kAfterCall };
  using Kind = ReasoningEvent::Kind;

  std::vector<ReasoningEvent> run(bool at_end);
  bool step(bool at_end);  // false: needs more text
  bool step_start(bool at_end);
  bool step_reasoning(bool at_end);
  bool step_after_call(bool at_end);
  void emit_reasoning(size_t size);  // the first `size` bytes of pending_
  void emit_content(size_t size);
  void emit(Kind kind, std::string_view text);

  bool starts_in_reasoning_;
  CallInReasoning call_;
  State state_ = State::kStart;
  std::string pending_;        // received, not yet decided
  std::string held_newlines_;  // of reasoning: dropped if they turn out to be the last
  bool has_reasoning_ = false;
  std::vector<ReasoningEvent> events_;
};

}  // namespace longspan::text
