// AnswerReader: the tokens of one answer become text, reasoning and tool calls. Order of work: detokenizer,
// reasoning parser, stop strings (in the content only), tool parser.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/stop_matcher.h"
#include "text/detokenizer.h"
#include "text/reasoning_parser.h"
#include "text/tool_parser.h"

namespace longspan::server {

enum class ReasoningMode : uint8_t {
  kNone,    // everything is content
  kClosed,  // answers begin outside of reasoning
  kOpen,    // the prompt ended inside of an open <think>
};

struct AnswerOptions {
  ReasoningMode reasoning = ReasoningMode::kNone;
  std::shared_ptr<const text::ToolSchema> tools;  // null: calls are not looked for
  // An answer that must have a form has it behind its reasoning, whatever is in there.
  text::CallInReasoning call_in_reasoning = text::CallInReasoning::kEndsIt;
  bool parallel_calls = true;  // false: the answer ends after its first call
  std::vector<std::string> stop;
  bool keep_stop = false;  // the stop string is part of the answer
  text::Decoding decoding = text::Decoding::kSkipSpecial;
};

// What became known since the last look.
struct Delta {
  std::string reasoning;
  std::string content;
  std::vector<text::ToolCall> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

// One answer. Not thread-safe. Borrows the tokenizer. The deltas together do not depend on when they are
// taken.
class AnswerReader final {
 public:
  AnswerReader(const text::Tokenizer& tokenizer, const AnswerOptions& options);

  void push(int32_t token);          // nothing after the end
  void finish(text::AnswerEnd end);  // once
  Delta take();

  // A stop string or the one call that was asked for: no further token is needed.
  bool ended() const { return stops_.found().has_value() || enough_calls_; }
  const std::optional<std::string>& stop_string() const { return stops_.found(); }
  bool has_calls() const { return has_calls_; }
  int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }

 private:
  void add_text(const std::string& text);
  void add_events(const std::vector<text::ReasoningEvent>& events);
  void add_content(const std::string& text);
  void add_tool_events(std::vector<text::ToolEvent> events);

  text::Detokenizer detokenizer_;
  std::optional<text::ReasoningParser> reasoning_;
  StopMatcher stops_;
  std::optional<text::ToolParser> tools_;
  bool parallel_calls_;
  bool in_reasoning_;  // as far as the parser has told
  bool has_calls_ = false;
  bool enough_calls_ = false;
  int64_t num_reasoning_tokens_ = 0;
  Delta delta_;
};

}  // namespace longspan::server
