#include "text/tool_parser.h"

#include <algorithm>
#include <random>
#include <utility>

namespace longspan::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFunctionOpen = "<function=";
constexpr std::string_view kFunctionOpenSpaced = "<function ";
constexpr std::string_view kFunctionClose = "</function>";
constexpr std::string_view kParameterOpen = "<parameter=";
constexpr std::string_view kParameterClose = "</parameter>";
constexpr size_t kMaxNameBytes = 256;  // of a function or parameter

size_t gap_of(std::string_view text) { return std::min(text.find_first_not_of(kWhiteSpace), text.size()); }

// Names end at '>'; where the model forgot it, at the line end or the next tag.
size_t name_size(std::string_view text) { return std::min(text.find_first_of(">\n<"), text.size()); }

std::string_view clean_name(std::string_view name) {
  name = trim(name);
  if (name.starts_with("name=")) name.remove_prefix(5);
  constexpr std::string_view kQuotes = "\"' ";
  name.remove_prefix(std::min(name.find_first_not_of(kQuotes), name.size()));
  return name.substr(0, name.find_last_not_of(kQuotes) + 1);
}

}  // namespace

std::string make_call_id() {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += kDigits[random() % kDigits.size()];
  return id;
}

std::vector<ToolEvent> ToolParser::push(std::string_view text) {
  pending_ += text;
  return run();
}

std::vector<ToolEvent> ToolParser::finish(AnswerEnd end) {
  at_end_ = true;
  std::vector<ToolEvent> events = run();
  const bool call_is_open = state_ != State::kContent && state_ != State::kAfterFunction;
  if (call_is_open && end == AnswerEnd::kComplete && !function_.empty()) {
    emit_call();
    events.push_back(std::move(events_.back()));
  } else if (state_ == State::kContent && !held_spaces_.empty() && !after_call_) {
    events.emplace_back(std::move(held_spaces_));
  }
  return events;
}

std::vector<ToolEvent> ToolParser::run() {
  while (step()) continue;
  return std::exchange(events_, {});
}

bool ToolParser::step() {
  switch (state_) {
    case State::kContent:
      return step_content();
    case State::kFunctionName:
      return step_function_name();
    case State::kBetweenParameters:
      return step_between_parameters();
    case State::kParameterName:
      return step_parameter_name();
    case State::kValue:
      return step_value();
    case State::kAfterFunction:
      return step_after_function();
  }
  return false;
}

Match ToolParser::is_bare_call(std::string_view text) const {
  const Match open = starts_with_tag(text, kFunctionOpen, at_end_);
  if (open != Match::kYes) return open;
  const std::string_view rest = text.substr(kFunctionOpen.size());
  const size_t size = name_size(rest);
  if (size == rest.size() && !at_end_ && size <= kMaxNameBytes) return Match::kMore;
  return schema_.has_tool(clean_name(rest.substr(0, size))) ? Match::kYes : Match::kNo;
}

bool ToolParser::step_content() {
  const std::string_view text = pending_;
  size_t at = text.find('<');
  for (; at != text.npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    Match call = starts_with_tag(rest, kCallOpen, at_end_);
    if (call == Match::kYes) {
      const std::string_view after = rest.substr(kCallOpen.size());
      call = gap_of(after) > kMaxGap ? Match::kNo
                                     : starts_with_any(after, {kFunctionOpen, kFunctionOpenSpaced}, at_end_);
    }
    const Match bare = is_bare_call(rest);
    if (call == Match::kNo && bare == Match::kNo) continue;
    emit_content(at);
    if (call != Match::kYes && bare != Match::kYes) return false;
    held_spaces_.clear();
    const std::string_view begin = pending_;
    const size_t gap = call == Match::kYes ? kCallOpen.size() + gap_of(begin.substr(kCallOpen.size())) : 0;
    take(gap + kFunctionOpen.size());
    state_ = State::kFunctionName;
    return true;
  }
  emit_content(text.size());
  return false;
}

std::optional<std::string> ToolParser::read_name() {
  const std::string_view text = pending_;
  const size_t size = std::min(name_size(text), kMaxNameBytes);
  if (size == text.size() && !at_end_) return std::nullopt;
  std::string name(clean_name(text.substr(0, size)));
  take(size + (size < text.size() && text[size] == '>' ? 1 : 0));
  return name;
}

bool ToolParser::step_function_name() {
  auto name = read_name();
  if (!name) return false;
  function_ = *std::move(name);
  arguments_ = Json::object();
  state_ = State::kBetweenParameters;
  return true;
}

// Whatever is not a tag has no meaning here and is dropped.
bool ToolParser::step_between_parameters() {
  take(std::min(pending_.find('<'), pending_.size()));
  if (pending_.empty()) return false;
  const std::string_view text = pending_;
  const Match parameter = starts_with_tag(text, kParameterOpen, at_end_);
  const Match function_end = starts_with_tag(text, kFunctionClose, at_end_);
  const Match call_end = starts_with_any(text, {kCallClose, kCallOpen, kFunctionOpen}, at_end_);
  if (parameter == Match::kYes) {
    take(kParameterOpen.size());
    state_ = State::kParameterName;
  } else if (function_end == Match::kYes || call_end == Match::kYes) {
    emit_call();
    if (function_end == Match::kYes) take(kFunctionClose.size());
    state_ = State::kAfterFunction;
  } else if (parameter == Match::kMore || function_end == Match::kMore || call_end == Match::kMore) {
    return false;
  } else {
    take(1);
  }
  return true;
}

bool ToolParser::step_parameter_name() {
  auto name = read_name();
  if (!name) return false;
  parameter_ = *std::move(name);
  scanned_ = 0;
  state_ = State::kValue;
  return true;
}

Match ToolParser::closes_value(std::string_view text) const {
  const auto followed_by = [&](std::string_view tag, std::initializer_list<std::string_view> next) {
    const std::string_view after = text.substr(tag.size());
    const size_t gap = gap_of(after);
    if (gap > kMaxGap) return Match::kNo;
    if (gap == after.size()) return at_end_ ? Match::kYes : Match::kMore;
    return starts_with_any(after, next, at_end_);
  };
  const auto check = [&](std::string_view tag, std::initializer_list<std::string_view> next) {
    const Match match = starts_with_tag(text, tag, at_end_);
    return match == Match::kYes ? followed_by(tag, next) : match;
  };
  if (text.starts_with(kParameterOpen)) {  // the model forgot </parameter>
    const std::string_view rest = text.substr(kParameterOpen.size());
    const size_t size = name_size(rest);
    if (size == rest.size() && !at_end_ && size <= kMaxNameBytes) return Match::kMore;
    return schema_.may_have_parameter(function_, clean_name(rest.substr(0, size))) ? Match::kYes : Match::kNo;
  }
  const Match results[] = {
      check(kParameterClose, {kParameterOpen, kFunctionClose, kCallClose, kCallOpen}),
      check(kFunctionClose, {kCallClose, kCallOpen, kFunctionOpen}),
      check(kCallClose, {kCallOpen}),
      starts_with_tag(text, kParameterOpen, at_end_),
  };
  const auto any = [&](Match match) { return std::count(std::begin(results), std::end(results), match) > 0; };
  return any(Match::kYes) ? Match::kYes : any(Match::kMore) ? Match::kMore : Match::kNo;
}

bool ToolParser::step_value() {
  const std::string_view text = pending_;
  for (size_t at = text.find('<', scanned_); at != text.npos; at = text.find('<', at + 1)) {
    scanned_ = at;
    const Match closes = closes_value(text.substr(at));
    if (closes == Match::kMore) return false;
    if (closes == Match::kNo) continue;
    add_parameter(at);
    if (std::string_view(pending_).starts_with(kParameterClose)) take(kParameterClose.size());
    state_ = State::kBetweenParameters;
    return true;
  }
  scanned_ = text.size();
  if (at_end_) add_parameter(text.size());
  if (at_end_) state_ = State::kBetweenParameters;
  return false;
}

bool ToolParser::step_after_function() {
  const std::string_view text = pending_;
  const size_t gap = gap_of(text);
  const std::string_view rest = text.substr(gap);
  if (rest.empty()) return false;
  const Match call_end = starts_with_tag(rest, kCallClose, at_end_);
  const Match function = starts_with_tag(rest, kFunctionOpen, at_end_);
  if (call_end == Match::kYes) {
    take(gap + kCallClose.size());
    state_ = State::kContent;
  } else if (function == Match::kYes) {  // a second function in the same block
    take(gap + kFunctionOpen.size());
    state_ = State::kFunctionName;
  } else if (call_end == Match::kMore || function == Match::kMore) {
    return false;
  } else {
    state_ = State::kContent;
  }
  return true;
}

void ToolParser::emit_content(size_t size) {
  std::string_view text = std::string_view(pending_).substr(0, size);
  if (after_call_) text.remove_prefix(gap_of(text));
  const size_t last = text.find_last_not_of(kWhiteSpace);
  if (last != text.npos) {
    std::string content = std::exchange(held_spaces_, {}).append(text.substr(0, last + 1));
    std::string* previous = events_.empty() ? nullptr : std::get_if<std::string>(&events_.back());
    if (previous) {
      *previous += content;
    } else {
      events_.emplace_back(std::move(content));
    }
    after_call_ = false;
    text.remove_prefix(last + 1);
  }
  held_spaces_ += text;
  take(size);
}

// One newline after the opening tag and one before the closing tag belong to the format, not to the value.
void ToolParser::add_parameter(size_t value_size) {
  std::string_view value = std::string_view(pending_).substr(0, value_size);
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  arguments_[parameter_] = schema_.value(function_, parameter_, value);
  take(value_size);
  scanned_ = 0;
}

// A call without a name cannot be made by anyone: it is dropped.
void ToolParser::emit_call() {
  after_call_ = true;
  if (function_.empty()) return;
  constexpr int kNoIndent = -1;
  events_.emplace_back(
      ToolCall{std::exchange(function_, {}),
               arguments_.dump(kNoIndent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace)});
}

}  // namespace longspan::text
