#include "measure/finding.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace longspan::measure {

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "FAIL";
  }
  return "";
}

bool any_failed(const Findings& findings) {
  return std::ranges::any_of(findings, [](const Finding& one) { return one.verdict == Verdict::kFail; });
}

std::string to_text(const Finding& finding) {
  std::string text =
      fmt::format("{:<5}{:<16}{}\n", to_string(finding.verdict), finding.topic + " ", finding.text);
  if (!finding.advice.empty()) text += fmt::format("{:21}-> {}\n", "", finding.advice);
  return text;
}

std::string to_text(const Findings& findings) {
  std::string text;
  for (const Finding& one : findings) text += to_text(one);
  return text;
}

nlohmann::ordered_json to_json(const Findings& findings) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    std::string verdict(to_string(one.verdict));
    std::ranges::transform(verdict, verdict.begin(), [](unsigned char c) { return std::tolower(c); });
    json.push_back({{"topic", one.topic}, {"verdict", verdict}, {"text", one.text}, {"advice", one.advice}});
  }
  return json;
}

}  // namespace longspan::measure
