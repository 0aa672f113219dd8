// The two printed forms of a comparison.
#include <cmath>

#include "core/error.h"
#include "measure/compare.h"
#include "text/utf8.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxShown = 20;  // differences of a kind; JSON has them all

std::string json_quoted(const std::string& text) { return Json(text).dump(); }

std::string cut_value(const std::string& value) {
  constexpr size_t kMaxValue = 80;  // bytes; JSON has the whole
  return value.size() <= kMaxValue ? value : text::replace_invalid_utf8(value.substr(0, kMaxValue)) + "...";
}

std::string output_line(const OutputDifference& difference) {
  const std::string where = fmt::format("request {} ({})", difference.request, difference.bucket);
  const std::string tokens = fmt::format("{} tokens against {}", difference.tokens_a, difference.tokens_b);
  if (difference.what == "tokens") return fmt::format("{}: the same text, {}", where, tokens);
  return fmt::format("{}: {} differs from character {} on, {}\n      A: {}\n      B: {}", where,
                     difference.what, difference.first_char, tokens, json_quoted(difference.a),
                     json_quoted(difference.b));
}

std::string row_line(const MetricRow& row) {
  std::string line = fmt::format("  {:<26}{:>14.3f}{:>14.3f}", row.name, row.a, row.b);
  if (row.a_again) line += fmt::format("{:>14.3f}", *row.a_again);
  line += fmt::format("{:>9.4f}{:>+9.2f} %  {}", row.ratio(), row.change_percent(), to_string(row.verdict()));
  if (row.verdict() == RatioVerdict::kVoid)
    line += fmt::format(": A drifted by {:+.2f} %", row.drift_percent());
  return line;
}

template <class List, class Line>
void add_list(std::string& text, const std::string& title, const List& list, const Line& line) {
  if (list.empty()) return;
  text += title + "\n";
  for (size_t i = 0; i < std::min(list.size(), kMaxShown); ++i) text += "  " + line(list[i]) + "\n";
  if (list.size() > kMaxShown) text += fmt::format("  ... and {} more\n", list.size() - kMaxShown);
}

}  // namespace

std::string to_text(const Comparison& comparison) {
  const bool repeated = !comparison.rows.empty() && comparison.rows.front().a_again.has_value();
  std::string text =
      fmt::format("A against B{}, {}; within {:g} % is noise\n", repeated ? " against A again" : "",
                  described(comparison.kind), kNoisePercent);
  std::string group;
  for (const MetricRow& row : comparison.rows) {
    if (row.group != group)
      text += fmt::format("{:<28}{:>14}{:>14}{}{:>9}{:>11}\n", row.group, "A", "B",
                          repeated ? fmt::format("{:>14}", "A again") : "", "B/A", "change");
    group = row.group;
    text += row_line(row) + "\n";
  }
  const auto as_is = [](const std::string& line) { return line; };
  if (comparison.outputs.num_compared > 0)
    text += fmt::format("outputs: {} of {} requests differ\n", comparison.outputs.differences.size(),
                        comparison.outputs.num_compared);
  add_list(text, "OUTPUTS DIFFER", comparison.outputs.differences, output_line);
  add_list(text, "other paths were taken", comparison.counters, as_is);
  add_list(text, "environments differ", comparison.environment, [](const EnvironmentDifference& difference) {
    return fmt::format("{}: {} against {}", difference.key, cut_value(difference.a), cut_value(difference.b));
  });
  for (const std::string& remark : comparison.remarks) text += "note: " + remark + "\n";
  add_list(text, "VOID: no ratio above counts", comparison.voids, as_is);
  return text;
}

Json to_json(const Comparison& comparison) {
  Json rows = Json::array(), outputs = Json::array(), environment = Json::array();
  for (const MetricRow& row : comparison.rows)
    rows.push_back({{"group", row.group},
                    {"metric", row.name},
                    {"a", row.a},
                    {"b", row.b},
                    {"a_again", row.a_again ? Json(*row.a_again) : Json(nullptr)},
                    {"ratio", row.ratio()},
                    {"change_percent", row.change_percent()},
                    {"drift_percent", row.a_again ? Json(row.drift_percent()) : Json(nullptr)},
                    {"verdict", to_string(row.verdict())}});
  for (const OutputDifference& difference : comparison.outputs.differences)
    outputs.push_back({{"request", difference.request},
                       {"bucket", difference.bucket},
                       {"what", difference.what},
                       {"first_char", difference.first_char},
                       {"a", difference.a},
                       {"b", difference.b},
                       {"tokens_a", difference.tokens_a},
                       {"tokens_b", difference.tokens_b}});
  for (const EnvironmentDifference& difference : comparison.environment)
    environment.push_back({{"key", difference.key}, {"a", difference.a}, {"b", difference.b}});
  return {{"kind", "comparison"},
          {"of", to_string(comparison.kind)},
          {"ok", comparison.ok()},
          {"void", comparison.voids},
          {"rows", std::move(rows)},
          {"outputs_compared", comparison.outputs.num_compared},
          {"outputs_differ", std::move(outputs)},
          {"counters_differ", comparison.counters},
          {"environments_differ", std::move(environment)},
          {"things_that_differ", differing_things(comparison.environment)},
          {"notes", comparison.remarks}};
}

}  // namespace longspan::measure
