// Finding: one judgement of doctor or verify, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::measure {

enum class Verdict : uint8_t {
  kOk,
  kWarn,  // it works, but slower or other than one may think; or it was not checked
  kFail   // it does not work, or what runs is not what one believes
};
std::string_view to_string(Verdict verdict);  // "ok", "warn", "FAIL"

struct Finding {
  std::string topic;  // "cpu", "page plan"
  Verdict verdict = Verdict::kOk;
  std::string text;    // what was found, with both values where they differ
  std::string advice;  // what to do; empty with kOk
};
using Findings = std::vector<Finding>;

bool any_failed(const Findings& findings);
// One line a finding, advice below it where there is some.
std::string to_text(const Finding& finding);
std::string to_text(const Findings& findings);
nlohmann::ordered_json to_json(const Findings& findings);  // [{topic, verdict, text, advice}]

}  // namespace longspan::measure
