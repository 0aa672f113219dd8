#include "measure/report_page.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.h"
#include "measure/svg_chart.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Longspan: measured</title><style>
body{font:15px/1.45 system-ui,sans-serif;color:#1c1e21;background:#fff;max-width:900px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #ccc}
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}
th,td{padding:.2em .7em;text-align:right;border-bottom:1px solid #e4e6e8}th:first-child,td:first-child{text-align:left}
svg{width:100%;height:auto;margin:.5em 0}svg text{font:11px system-ui,sans-serif;fill:#333}svg .title{font-size:14px;font-weight:600}
svg .mid{text-anchor:middle}svg .end{text-anchor:end}svg .grid{stroke:#e4e6e8}
.void{background:#fdecea;border-left:4px solid #c0392b;padding:.4em .8em;margin:.6em 0}.note{color:#5a5f66}
</style></head><body>
)";

std::string paragraph(const char* style, const std::string& text) {
  return fmt::format("<p class=\"{}\">{}</p>\n", style, html_text(text));
}

std::string table_html(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return "";
  std::string html = "<table><tr>";
  for (const std::string& cell : head) html += "<th>" + html_text(cell) + "</th>";
  html += "</tr>\n";
  for (const auto& row : rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + html_text(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::optional<double> number_in(const Json& json, const char* name) {
  if (!json.is_object() || !json.contains(name) || !json[name].is_number()) return std::nullopt;
  return json[name].get<double>();
}

std::string cell_of(const std::optional<double>& value, int decimals = 2) {
  return value ? fmt::format("{:.{}f}", *value, decimals) : "-";
}

std::vector<std::string> names_of(const std::vector<SavedResult>& results) {
  std::vector<std::string> names;
  for (const SavedResult& result : results) names.push_back(result.name);
  return names;
}

// ---- end to end ----

Json buckets_of(const Json& json) {
  if (json.contains("buckets") && !json["buckets"].empty()) return json["buckets"];
  Json all = json;  // another program's file
  all["name"] = "all";
  return Json::array({std::move(all)});
}

std::string serving_warnings(const std::vector<SavedResult>& serving) {
  std::string html;
  for (const SavedResult& result : serving) {
    for (const Json& why : result.json.value("void", Json::array()))
      html += paragraph("void", result.name + ": void: " + why.get<std::string>());
    if (result.json.value("cold", false))
      html += paragraph("void", result.name + ": measured cold: it compares with nothing");
    if (const int64_t failed = result.json.value("failed", int64_t{0}); failed > 0)
      html += paragraph("void", fmt::format("{}: {} requests failed", result.name, failed));
    for (const Json& note : result.json.value("notes", Json::array()))
      html += paragraph("note", result.name + ": " + note.get<std::string>());
  }
  return html;
}

std::string serving_table(const std::vector<SavedResult>& serving) {
  std::vector<std::vector<std::string>> rows;
  for (const SavedResult& result : serving) {
    for (const Json& bucket : buckets_of(result.json))
      rows.push_back(
          {result.name, bucket.value("name", ""), cell_of(number_in(bucket, "completed"), 0),
           cell_of(number_in(bucket, "failed"), 0), cell_of(number_in(bucket, "output_throughput")),
           cell_of(number_in(bucket, "mean_ttft_ms")), cell_of(number_in(bucket, "p99_ttft_ms")),
           cell_of(number_in(bucket, "mean_tpot_ms")), cell_of(number_in(bucket, "mean_e2el_ms"))});
    if (const auto score = number_in(result.json, "score"))
      rows.push_back({result.name, "score", "", "", cell_of(score, 3), "", "", "", ""});
  }
  return table_html(
      {"run", "prompts", "completed", "failed", "output tok/s", "TTFT ms", "p99 TTFT", "TPOT ms", "E2EL ms"},
      rows);
}

std::string serving_bars(const std::vector<SavedResult>& serving) {
  std::vector<BarGroup> groups;
  for (size_t i = 0; i < serving.size(); ++i)
    for (const Json& bucket : buckets_of(serving[i].json)) {
      const std::string name = bucket.value("name", "");
      auto at = std::find_if(groups.begin(), groups.end(),
                             [&](const BarGroup& group) { return group.name == name; });
      if (at == groups.end()) {
        groups.push_back({.name = name, .values = std::vector<std::optional<double>>(serving.size())});
        at = std::prev(groups.end());
      }
      at->values[i] = number_in(bucket, "output_throughput");
    }
  return bars_svg("Output throughput by prompt length, end to end", "tokens a second", names_of(serving),
                  groups);
}

std::string against_context(const std::vector<SavedResult>& serving, const char* metric,
                            const std::string& title) {
  std::vector<ChartSeries> series;
  for (const SavedResult& result : serving)
    series.push_back({.name = result.name, .points = request_points(result.json, metric)});
  return points_svg(title, {.title = "prompt tokens"}, {.title = "ms"}, std::move(series));
}

std::string serving_part(const std::vector<SavedResult>& serving) {
  if (serving.empty()) return "";
  return "<h2>End to end</h2>\n" + serving_warnings(serving) + serving_table(serving) +
         serving_bars(serving) +
         against_context(serving, "ttft_ms", "Time to first token against context, a point a request") +
         against_context(serving, "tpot_ms", "Time per output token against context, a point a request");
}

// ---- inside profiles ----

std::string profile_part(const std::vector<SavedResult>& profiles) {
  if (profiles.empty()) return "";
  std::vector<std::string> classes;
  for (const SavedResult& profile : profiles)
    for (const Json& row : profile.json.value("classes", Json::array()))
      if (const std::string name = row.value("name", "");
          std::find(classes.begin(), classes.end(), name) == classes.end())
        classes.push_back(name);
  std::vector<std::string> head = {"class"};
  for (const SavedResult& profile : profiles) {
    head.push_back(profile.name + " ms");
    head.push_back("% of wall");
  }
  std::vector<std::vector<std::string>> rows;
  std::vector<BarGroup> groups;
  for (const std::string& name : classes) {
    rows.push_back({name});
    groups.push_back({.name = name, .values = {}});
    for (const SavedResult& profile : profiles) {
      std::optional<double> ms, share;
      for (const Json& row : profile.json.value("classes", Json::array()))
        if (row.value("name", "") == name) {
          ms = number_in(row, "ms");
          share = number_in(row, "wall_percent");
        }
      rows.back().push_back(cell_of(ms));
      rows.back().push_back(cell_of(share));
      groups.back().values.push_back(share);
    }
  }
  return "<h2>Inside profiles</h2>\n" +
         paragraph("note", "Shares of a window. No ratio of these is a ratio of a service.") +
         table_html(head, rows) + bars_svg("Time by class", "% of the window", names_of(profiles), groups);
}

// ---- growth with context ----

std::string context_part(const std::vector<SavedResult>& contexts) {
  if (contexts.empty()) return "";
  std::vector<ChartSeries> prefill, decode;
  std::vector<std::vector<std::string>> rows;
  for (const SavedResult& result : contexts) {
    prefill.push_back({.name = result.name, .points = {}});
    decode.push_back({.name = result.name, .points = {}});
    for (const Json& figure : result.json.value("figures", Json::array())) {
      const double context = number_in(figure, "context").value_or(0);
      const auto us = number_in(figure, "prefill_us_per_token"),
                 ms = number_in(figure, "decode_ms_per_token");
      if (us) prefill.back().points.emplace_back(context, *us);
      if (ms) decode.back().points.emplace_back(context, *ms);
      rows.push_back({result.name, fmt::format("{:.0f}", context), cell_of(us, 3), cell_of(ms, 3)});
    }
  }
  return "<h2>Growth with context, engine alone</h2>\n" +
         table_html({"run", "context", "prefill us/token", "decode ms/token"}, rows) +
         points_svg("Prefill against context", {.title = "context, tokens"}, {.title = "us a token"},
                    std::move(prefill)) +
         points_svg("Decode against context", {.title = "context, tokens"}, {.title = "ms a token"},
                    std::move(decode));
}

// ---- kernels alone ----

// Work a byte, from the two rates: what tells a kernel's limit.
void add_roofline_point(const Json& figure, ChartSeries& series) {
  const auto tflops = number_in(figure, "tflops"), gbytes = number_in(figure, "gbytes_per_s");
  if (!tflops || !gbytes || !(*tflops > 0) || !(*gbytes > 0)) return;
  series.points.emplace_back(*tflops * 1e3 / *gbytes, *tflops);
  series.labels.push_back(fmt::format("{} {} {}", figure.value("op", ""), figure.value("variant", ""),
                                      figure.value("shape", "")));
}

// The line that no kernel of this machine can be above.
std::optional<ChartSeries> roof_of(const Json& kernels, const std::vector<ChartSeries>& points) {
  const Json peak = kernels.value("peak", Json());
  const auto read = number_in(peak, "read_gbytes_per_s");
  auto matrix = number_in(peak, "bf16_tflops");
  if (!matrix) matrix = number_in(peak, "fp32_tflops");
  if (!read || !matrix || !(*read > 0)) return std::nullopt;
  double low = *matrix * 1e3 / *read, high = low;
  for (const ChartSeries& series : points)
    for (const auto& point : series.points) {
      low = std::min(low, point.first);
      high = std::max(high, point.first);
    }
  const double ridge = *matrix * 1e3 / *read;
  return ChartSeries{.name = fmt::format("limit: {:.0f} GB/s, {:.3g} TFLOP/s", *read, *matrix),
                     .points = {{low, low * *read / 1e3}, {ridge, *matrix}, {high, *matrix}}};
}

std::string kernel_part(const std::vector<SavedResult>& kernels) {
  if (kernels.empty()) return "";
  std::string html =
      "<h2>Kernels alone</h2>\n" +
      paragraph("note",
                "Operations by themselves, on cold memory. No ratio of these is a ratio of a service.");
  for (const SavedResult& result : kernels) {
    std::vector<ChartSeries> series;
    std::map<std::string, size_t> by_class;
    std::vector<std::vector<std::string>> rows;
    for (const Json& figure : result.json.value("figures", Json::array())) {
      const std::string name = figure.value("class", figure.value("op", ""));
      if (by_class.try_emplace(name, series.size()).second) series.push_back({.name = name, .joined = false});
      add_roofline_point(figure, series[by_class[name]]);
      rows.push_back({figure.value("op", ""), figure.value("variant", ""), figure.value("shape", ""),
                      cell_of(number_in(figure, "median_us"), 1),
                      cell_of(number_in(figure, "gbytes_per_s"), 1),
                      cell_of(number_in(figure, "read_percent"), 0), cell_of(number_in(figure, "tflops"), 4),
                      cell_of(number_in(figure, "matrix_percent"), 0)});
    }
    if (auto roof = roof_of(result.json, series)) series.push_back(std::move(*roof));
    html += points_svg("Roofline: " + result.name, {.title = "operations a byte", .scale = AxisScale::kLog},
                       {.title = "TFLOP/s", .scale = AxisScale::kLog}, std::move(series)) +
            table_html({"operation", "variant", "shape", "median us", "GB/s", "% read", "TFLOP/s", "% peak"},
                       rows);
  }
  return html;
}

}  // namespace

std::vector<std::pair<double, double>> request_points(const Json& serving, const char* metric) {
  std::vector<std::pair<double, double>> points;
  for (const Json& request : serving.value("requests", Json::array())) {
    const auto tokens = number_in(request, "prompt_tokens"), value = number_in(request, metric);
    if (request.value("error", "").empty() && tokens && value) points.emplace_back(*tokens, *value);
  }
  std::sort(points.begin(), points.end());
  return points;
}

std::string report_html(const ReportSources& sources) {
  std::string html = kHead;
  html += "<h1>Longspan: measured</h1>\n" + paragraph("note",
                                                      "End to end, inside a profile, and a kernel alone are "
                                                      "three kinds of numbers. They stand apart here, "
                                                      "and none stands in for another.");
  html += serving_part(sources.serving) + profile_part(sources.profiles) + context_part(sources.contexts) +
          kernel_part(sources.kernels);
  for (const std::string& path : sources.skipped) html += paragraph("note", "not a measurement: " + path);
  return html + "</body></html>\n";
}

}  // namespace longspan::measure
