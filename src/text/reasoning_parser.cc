#include "text/reasoning_parser.h"

#include <algorithm>
#include <utility>

#include "text/tag_scanner.h"

namespace longspan::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

size_t skip_gap(std::string_view text) { return std::min(text.find_first_not_of(kWhiteSpace), text.size()); }

}  // namespace

bool opens_reasoning(std::string_view prompt) {
  const size_t open = prompt.rfind(kOpen);
  if (open == prompt.npos) return false;
  const std::string_view after = prompt.substr(open + kOpen.size());
  return after.find(kClose) == after.npos && after.find("<|") == after.npos;  // "<|im_end|>" ends a turn
}

std::vector<ReasoningEvent> ReasoningParser::push(std::string_view text) {
  pending_ += text;
  return run(/*at_end=*/false);
}

std::vector<ReasoningEvent> ReasoningParser::finish() { return run(/*at_end=*/true); }

std::vector<ReasoningEvent> ReasoningParser::run(bool at_end) {
  while (!pending_.empty() && step(at_end)) continue;
  return std::exchange(events_, {});
}

bool ReasoningParser::step(bool at_end) {
  switch (state_) {
    case State::kStart:
      return step_start(at_end);
    case State::kReasoning:
      return step_reasoning(at_end);
    case State::kBeforeContent:
      pending_.erase(0, std::min(pending_.find_first_not_of("\r\n"), pending_.size()));
      if (!pending_.empty()) state_ = State::kContent;
      return true;
    case State::kContent:
      emit_content(pending_.size());
      return true;
    case State::kAfterCall:
      return step_after_call(at_end);
  }
  return false;
}

// A leading tag, after white space; everything else decides nothing.
bool ReasoningParser::step_start(bool at_end) {
  const size_t gap = skip_gap(pending_);
  const std::string_view rest = std::string_view(pending_).substr(gap);
  const Match open = gap > kMaxGap ? Match::kNo : starts_with_tag(rest, kOpen, at_end);
  const Match close = gap > kMaxGap ? Match::kNo : starts_with_tag(rest, kClose, at_end);
  if (open == Match::kMore || close == Match::kMore) return false;
  if (open == Match::kYes) {
    pending_.erase(0, gap + kOpen.size());
    state_ = State::kReasoning;
  } else if (close == Match::kYes &&
             !starts_in_reasoning_) {  // a second end of thoughts that the prompt has ended
    pending_.erase(0, gap + kClose.size());
    state_ = State::kBeforeContent;
  } else {
    state_ = starts_in_reasoning_ ? State::kReasoning : State::kContent;
  }
  return true;
}

bool ReasoningParser::step_reasoning(bool at_end) {
  const std::string_view text = pending_;
  const size_t close = text.find(kClose);
  const size_t call = call_ == CallInReasoning::kEndsIt ? text.find(kCallOpen) : text.npos;
  if (close == text.npos && call == text.npos) {
    emit_reasoning(text.size() - (at_end ? 0 : partial_tag_size(text, {kClose, kCallOpen})));
    return false;
  }
  if (close < call) {
    emit_reasoning(close);
    pending_.erase(0, kClose.size());
    state_ = State::kBeforeContent;
    return true;
  }
  emit_reasoning(call);
  const std::string_view after = std::string_view(pending_).substr(kCallOpen.size());
  const bool too_far = skip_gap(after) > kMaxGap;
  const Match function = too_far ? Match::kNo : starts_with_any(after, {"<function=", "<function "}, at_end);
  if (function == Match::kMore) return false;
  if (function == Match::kYes) {
    state_ = State::kAfterCall;
  } else {
    emit_reasoning(kCallOpen.size());
  }
  return true;
}

// The thoughts ended with a call. The model may still close them behind it: that tag is not content.
bool ReasoningParser::step_after_call(bool at_end) {
  const std::string_view text = pending_;
  const size_t end = text.find(kCallClose);
  if (end == text.npos) {
    emit_content(text.size() - (at_end ? 0 : partial_tag_size(text, {kCallClose})));
    return false;
  }
  const std::string_view after = text.substr(end + kCallClose.size());
  const size_t gap = skip_gap(after);
  const Match close = gap > kMaxGap ? Match::kNo : starts_with_tag(after.substr(gap), kClose, at_end);
  if (close == Match::kMore) {
    emit_content(end);
    return false;
  }
  emit_content(end + kCallClose.size());
  if (close == Match::kYes) {
    pending_.erase(0, gap + kClose.size());
    state_ = State::kBeforeContent;
  }
  return true;
}

void ReasoningParser::emit_reasoning(size_t size) {
  std::string_view text = std::string_view(pending_).substr(0, size);
  if (!has_reasoning_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  const size_t last = text.find_last_not_of('\n');
  if (last != text.npos) {
    emit(Kind::kReasoning, std::exchange(held_newlines_, {}));
    emit(Kind::kReasoning, text.substr(0, last + 1));
    has_reasoning_ = true;
    text.remove_prefix(last + 1);
  }
  held_newlines_ += text;
  pending_.erase(0, size);
}

void ReasoningParser::emit_content(size_t size) {
  emit(Kind::kContent, std::string_view(pending_).substr(0, size));
  pending_.erase(0, size);
}

void ReasoningParser::emit(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text)});
  }
}

}  // namespace longspan::text
