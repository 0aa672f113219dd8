#include "server/answer_reader.h"

#include <utility>

namespace longspan::server {

AnswerReader::AnswerReader(const text::Tokenizer& tokenizer, const AnswerOptions& options)
    : detokenizer_(tokenizer, options.decoding),
      stops_(options.stop, options.keep_stop),
      parallel_calls_(options.parallel_calls),
      in_reasoning_(options.reasoning == ReasoningMode::kOpen) {
  if (options.reasoning != ReasoningMode::kNone) reasoning_.emplace(in_reasoning_, options.call_in_reasoning);
  if (options.tools) tools_.emplace(*options.tools);
}

void AnswerReader::push(int32_t token) {
  if (ended()) return;
  add_text(detokenizer_.push(token));
  if (in_reasoning_) ++num_reasoning_tokens_;
}

void AnswerReader::finish(text::AnswerEnd end) {
  add_text(detokenizer_.finish());
  if (reasoning_) add_events(reasoning_->finish());
  const std::string rest = stops_.finish();
  if (!tools_) {
    delta_.content += rest;
    return;
  }
  add_tool_events(tools_->push(rest));
  add_tool_events(tools_->finish(end));
}

Delta AnswerReader::take() { return std::exchange(delta_, {}); }

void AnswerReader::add_text(const std::string& text) {
  if (text.empty()) return;
  if (reasoning_)
    add_events(reasoning_->push(text));
  else
    add_content(text);
}

void AnswerReader::add_events(const std::vector<text::ReasoningEvent>& events) {
  for (const text::ReasoningEvent& event : events) {
    in_reasoning_ = event.kind == text::ReasoningEvent::Kind::kReasoning;
    if (in_reasoning_)
      delta_.reasoning += event.text;
    else
      add_content(event.text);
  }
}

void AnswerReader::add_content(const std::string& text) {
  std::string shown = stops_.push(text);
  if (tools_)
    add_tool_events(tools_->push(shown));
  else
    delta_.content += shown;
}

void AnswerReader::add_tool_events(std::vector<text::ToolEvent> events) {
  for (text::ToolEvent& event : events) {
    if (enough_calls_) return;
    if (auto* call = std::get_if<text::ToolCall>(&event)) {
      delta_.calls.push_back(std::move(*call));
      has_calls_ = true;
      enough_calls_ = !parallel_calls_;
    } else {
      delta_.content += std::get<std::string>(event);
    }
  }
}

}  // namespace longspan::server
