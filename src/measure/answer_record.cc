#include "measure/answer_record.h"

#include <nlohmann/json.hpp>

namespace longspan::measure {
namespace {

std::string string_field(const nlohmann::json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

std::optional<int64_t> integer_field(const nlohmann::json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_number()) return std::nullopt;
  return at->get<int64_t>();
}

// The part of a delta's tool calls that is new, as text.
std::string tool_text(const nlohmann::json& delta) {
  std::string text;
  const auto calls = delta.find("tool_calls");
  if (calls == delta.end() || !calls->is_array()) return text;
  for (const nlohmann::json& call : *calls) {
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    text += string_field(*function, "name") + string_field(*function, "arguments");
  }
  return text;
}

std::string error_text(const nlohmann::json& error) {
  const std::string message = error.is_object() ? string_field(error, "message") : std::string();
  return message.empty() ? error.dump() : message;
}

}  // namespace

std::optional<double> AnswerRecord::tpot_s() const {
  const int64_t tokens = num_output_tokens();
  if (tokens < 2) return std::nullopt;
  return (e2el_s - ttft_s) / static_cast<double>(tokens - 1);
}

void AnswerTimer::on_piece(double seconds, std::string_view piece) {
  if (!any_byte_) record_.ttfr_s = seconds;
  any_byte_ = true;
  events_.push(piece, [&](std::string_view data) { on_event(seconds, data); });
}

void AnswerTimer::on_event(double seconds, std::string_view data) {
  if (data == "[DONE]") {
    ended_ = true;
    return;
  }
  const nlohmann::json chunk = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!chunk.is_object()) {
    if (record_.error.empty()) record_.error = "an event of the stream is no JSON object";
    return;
  }
  if (const auto error = chunk.find("error"); error != chunk.end() && !error->is_null()) {
    if (record_.error.empty()) record_.error = "error in the stream: " + error_text(*error);
    return;
  }
  if (record_.id.empty()) record_.id = string_field(chunk, "id");
  if (const auto choices = chunk.find("choices"); choices != chunk.end() && choices->is_array())
    for (const nlohmann::json& choice : *choices)
      if (choice.is_object()) on_choice(seconds, choice);
  if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) on_usage(*usage);
}

void AnswerTimer::on_choice(double seconds, const nlohmann::json& choice) {
  std::string text, reasoning, calls;
  if (endpoint_ == BenchEndpoint::kCompletions) {
    text = string_field(choice, "text");
  } else if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object()) {
    text = string_field(*delta, "content");
    reasoning = string_field(*delta, "reasoning_content");
    if (reasoning.empty()) reasoning = string_field(*delta, "reasoning");  // its newer name in vLLM
    calls = tool_text(*delta);
  }
  record_.text += text;
  record_.reasoning += reasoning;
  record_.tool_calls += calls;
  const bool has_content = !text.empty() || !reasoning.empty() || !calls.empty();
  if (has_content) {
    if (last_content_s_)
      record_.itls_s.push_back(seconds - *last_content_s_);
    else
      record_.ttft_s = seconds;
    last_content_s_ = seconds;
    ++record_.num_chunks;
  }
  record_.e2el_s = seconds;
  if (std::string reason = string_field(choice, "finish_reason"); !reason.empty()) {
    record_.finish_reason = std::move(reason);
    ended_ = true;
  }
}

void AnswerTimer::on_usage(const nlohmann::json& usage) {
  // A usage in every chunk grows; the last one counts.
  if (const auto count = integer_field(usage, "prompt_tokens")) record_.prompt_tokens = count;
  if (const auto count = integer_field(usage, "completion_tokens")) record_.completion_tokens = count;
  const auto details = usage.find("prompt_tokens_details");
  if (details == usage.end() || !details->is_object()) return;
  if (const auto count = integer_field(*details, "cached_tokens")) record_.cached_tokens = count;
}

AnswerRecord AnswerTimer::finish(std::string error) {
  if (!error.empty() && record_.error.empty()) record_.error = std::move(error);
  if (record_.ok() && !ended_) record_.error = "the stream ended without a finish reason or [DONE]";
  if (record_.ok() && !last_content_s_)
    record_.error = "the answer held no text, no reasoning and no tool call: there is no first token to time";
  return std::move(record_);
}

}  // namespace longspan::measure
