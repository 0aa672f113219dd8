// The report of a profile, and of two, as text.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/units.h"
#include "measure/profile_report.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// "12.3", or blanks where the figure is not known.
std::string figure(const Json& value, int width, int decimals) {
  return value.is_number() ? fmt::format("{:>{}.{}f}", value.get<double>(), width, decimals)
                           : std::string(static_cast<size_t>(width), ' ');
}

std::string count_text(const Json& value) { return format_count(value.get<size_t>()); }

const Json* class_named(const Json& report, const std::string& name) {
  for (const Json& row : report["classes"])
    if (row["name"] == name) return &row;
  return nullptr;
}

double busy_percent(const Json* row) {
  return row != nullptr && (*row)["busy_percent"].is_number() ? (*row)["busy_percent"].get<double>() : 0;
}

double milliseconds(const Json* row) { return row == nullptr ? 0 : (*row)["ms"].get<double>(); }

// What two windows must share before their shares mean the same.
std::vector<std::string> window_differences(const Json& before, const Json& after) {
  std::vector<std::string> out;
  for (const char* field : {"model", "device", "dtype", "timed"})
    if (before.value(field, "") != after.value(field, ""))
      out.push_back(fmt::format("{}: {}, then {}", field, before.value(field, ""), after.value(field, "")));
  for (const char* field : {"requests", "prompt_tokens", "decode_tokens"}) {
    const int64_t a = before["window"].value(field, int64_t{0});
    const int64_t b = after["window"].value(field, int64_t{0});
    if (a != b) out.push_back(fmt::format("{}: {}, then {}", field, a, b));
  }
  return out;
}

std::string heading(const Json& report) {
  const Json& window = report["window"];
  const double seconds = window["seconds"], idle = window["idle_seconds"];
  std::string text =
      fmt::format("profile {}: {} on {}, {}\n", report.value("name", ""), report.value("model", ""),
                  report.value("device", ""), report.value("dtype", ""));
  text += fmt::format("window    {}, idle for {}; accounted for: {:.2f} %\n", format_seconds(seconds),
                      format_seconds(idle), report["accounted_percent"].get<double>());
  text += fmt::format(
      "in it     {} requests, {} prompt tokens, {} decoded tokens, {} steps ({} prefill, {} "
      "decode, {} both)\n",
      count_text(window["requests"]), count_text(window["prompt_tokens"]),
      count_text(window["decode_tokens"]), count_text(window["steps"]),
      window["prefill_steps"].get<int64_t>(), window["decode_steps"].get<int64_t>(),
      window["mixed_steps"].get<int64_t>());
  if (const Json& peak = report["peak"]; peak.is_object())
    text += fmt::format(
        "limits    read {:.1f} GB/s, bf16 {} TFLOP/s, fp32 {:.3f} TFLOP/s\n",
        peak["read_gbytes_per_s"].get<double>(),
        peak["bf16_tflops"].is_number() ? fmt::format("{:.3f}", peak["bf16_tflops"].get<double>()) : "-",
        peak["fp32_tflops"].get<double>());
  return text;
}

// What the host was at while the device had nothing to do.
std::string device_idle(const Json& report) {
  if (report.value("timed", "") != "kernels") return "";
  std::string text = "no kernel ran while the host was at:";
  for (const Json& phase : report["phases"])
    if (const double ms = phase.value("device_idle_ms", 0.0); ms > 0)
      text += fmt::format(" {} {:.3f} ms;", phase["name"].get<std::string>(), ms);
  text.back() = '\n';
  return text;
}

}  // namespace

std::string profile_table(const Json& report) {
  std::string text = heading(report);
  text += fmt::format("\n{:<22} {:>9} {:>12} {:>7} {:>7} {:>8} {:>7} {:>9} {:>8}\n", "class", "calls", "ms",
                      "wall %", "busy %", "GB/s", "% read", "TFLOP/s", "% peak");
  double ms = 0, wall = 0, busy = 0;
  for (const Json& row : report["classes"]) {
    text += fmt::format("{:<22} {:>9} {} {} {} {} {} {} {}\n", row["name"].get<std::string>(),
                        count_text(row["calls"]), figure(row["ms"], 12, 3), figure(row["wall_percent"], 7, 2),
                        figure(row["busy_percent"], 7, 2), figure(row["gbytes_per_s"], 8, 1),
                        figure(row["read_percent"], 7, 1), figure(row["tflops"], 9, 4),
                        figure(row["matrix_percent"], 8, 1));
    ms += row["ms"].get<double>();
    wall += row["wall_percent"].get<double>();
    busy += busy_percent(&row);
  }
  text += fmt::format("{:<22} {:>9} {:>12.3f} {:>7.2f} {:>7.2f}\n", "all", "", ms, wall, busy);
  text += device_idle(report);
  for (const Json& note : report["notes"]) text += fmt::format("note: {}\n", note.get<std::string>());
  return text;
}

std::string profile_comparison(const Json& before, const Json& after) {
  struct Line {
    std::string name;
    const Json* was;
    const Json* is;
  };
  std::vector<Line> lines;
  for (const Json* report : {&before, &after})
    for (const Json& row : (*report)["classes"]) {
      const std::string name = row["name"];
      const bool listed = std::ranges::any_of(lines, [&](const Line& line) { return line.name == name; });
      if (name != "idle" && !listed)
        lines.push_back({name, class_named(before, name), class_named(after, name)});
    }
  std::ranges::stable_sort(lines, std::greater<>(), [](const Line& line) {
    return std::abs(busy_percent(line.is) - busy_percent(line.was));
  });
  std::string text =
      fmt::format("share of the busy time, {} -> {}\n", before.value("name", ""), after.value("name", ""));
  for (const Line& line : lines) {
    const double was = milliseconds(line.was), is = milliseconds(line.is);
    text += fmt::format("{:<22} {:>6.2f} % -> {:>6.2f} %   {:>12.3f} ms -> {:>12.3f} ms", line.name,
                        busy_percent(line.was), busy_percent(line.is), was, is);
    if (was > 0 && is > 0) text += fmt::format("   {:>6.2f}x", was / is);
    text += "\n";
  }
  const std::vector<std::string> differences = window_differences(before, after);
  for (const std::string& line : differences) text += fmt::format("differs: {}\n", line);
  if (!differences.empty())
    text += "The two windows did not hold the same work: the milliseconds are not to be compared.\n";
  for (const Json* report : {&before, &after})
    if (!(*report)["window"]["cold_steps"].empty())
      text += fmt::format("note: {} holds cold steps\n", report->value("name", ""));
  return text;
}

}  // namespace longspan::measure
