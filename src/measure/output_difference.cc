#include "measure/output_difference.h"

#include <algorithm>
#include <optional>

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 40;

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

size_t differing_byte(const std::string& a, const std::string& b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto byte = static_cast<size_t>(at.first - a.begin());
  // Back to the beginning of the character.
  const auto inside = [](const std::string& text, size_t i) {
    return i < text.size() && continues_character(text[i]);
  };
  while (byte > 0 && (inside(a, byte) || inside(b, byte))) --byte;
  return byte;
}

std::string shown_from(const std::string& text, size_t byte) {
  size_t end = std::min(text.size(), byte + kShownBytes);
  while (end > byte && end < text.size() && continues_character(text[end])) --end;
  return text.substr(byte, end - byte);
}

// One answer, from this program's file or vLLM's.
struct SavedOutput {
  std::string bucket = "all";
  bool ok = true;
  int64_t tokens = 0;
  std::string text, reasoning, tool_calls;
};

std::vector<SavedOutput> saved_outputs(const Json& json) {
  std::vector<SavedOutput> outputs;
  if (json.contains("requests")) {
    for (const Json& request : json["requests"])
      outputs.push_back({.bucket = request.value("bucket", "all"),
                         .ok = request.value("error", "").empty(),
                         .tokens = request.value("completion_tokens", int64_t{0}),
                         .text = request.value("text", ""),
                         .reasoning = request.value("reasoning", ""),
                         .tool_calls = request.value("tool_calls", "")});
    return outputs;
  }
  const Json texts = json.value("generated_texts", Json::array());
  const Json counts = json.value("output_lens", Json::array());
  const Json errors = json.value("errors", Json::array());
  for (size_t i = 0; i < texts.size() && i < counts.size(); ++i)
    outputs.push_back({.ok = i >= errors.size() || errors[i].get<std::string>().empty(),
                       .tokens = counts[i].get<int64_t>(),
                       .text = texts[i].get<std::string>()});
  return outputs;
}

}  // namespace

std::optional<size_t> first_difference(const std::string& a, const std::string& b) {
  if (a == b) return std::nullopt;
  const size_t byte = differing_byte(a, b);
  return static_cast<size_t>(std::count_if(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(byte),
                                           [](char c) { return !continues_character(c); }));
}

ComparedOutputs compare_outputs(const Json& a, const Json& b) {
  const std::vector<SavedOutput> first = saved_outputs(a), second = saved_outputs(b);
  ComparedOutputs out;
  for (size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    if (!first[i].ok || !second[i].ok) continue;
    ++out.num_compared;
    OutputDifference difference{
        .request = i, .bucket = first[i].bucket, .tokens_a = first[i].tokens, .tokens_b = second[i].tokens};
    // Reasoning comes before text, and both before a call: the first part that differs is where they parted.
    const std::pair<const char*, std::string SavedOutput::*> parts[] = {
        {"reasoning", &SavedOutput::reasoning},
        {"text", &SavedOutput::text},
        {"tool_calls", &SavedOutput::tool_calls}};
    for (const auto& [name, part] : parts) {
      const auto at = first_difference(first[i].*part, second[i].*part);
      if (!at) continue;
      const size_t byte = differing_byte(first[i].*part, second[i].*part);
      difference.what = name;
      difference.first_char = *at;
      difference.a = shown_from(first[i].*part, byte);
      difference.b = shown_from(second[i].*part, byte);
      break;
    }
    if (difference.what.empty() && difference.tokens_a != difference.tokens_b) difference.what = "tokens";
    if (!difference.what.empty()) out.differences.push_back(std::move(difference));
  }
  return out;
}

}  // namespace longspan::measure
