// SvgChart: bars and points as inline SVG, for a page that needs nothing from anywhere. Knows no benchmark.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace longspan::measure {

enum class AxisScale : uint8_t { kLinear, kLog };

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y)
  bool joined = true;                             // by lines, in the order of x
  std::vector<std::string> labels;                // of the points, as tooltips; may be empty
};

struct ChartAxis {
  std::string title;  // with its unit
  AxisScale scale = AxisScale::kLinear;
};

// Points and lines. Points that are not positive are left out of logarithmic axes. Empty without points.
std::string points_svg(const std::string& title, const ChartAxis& x, const ChartAxis& y,
                       std::vector<ChartSeries> series);

struct BarGroup {
  std::string name;
  std::vector<std::optional<double>> values;  // [series]
};
// Groups of bars side by side, values written on them. Empty without groups.
std::string bars_svg(const std::string& title, const std::string& unit,
                     const std::vector<std::string>& series, const std::vector<BarGroup>& groups);

std::string html_text(const std::string& text);  // &, <, >, " escaped

}  // namespace longspan::measure
