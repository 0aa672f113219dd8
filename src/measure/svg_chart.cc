#include "measure/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace longspan::measure {
namespace {

constexpr double kWidth = 860, kHeight = 340;
constexpr double kLeft = 80, kRight = 20, kTop = 60, kBottom = 56;
constexpr std::array<const char*, 8> kColours = {"#1668b8", "#c8501e", "#2a8a4a", "#8a4fb0",
                                                 "#b08a1e", "#1a8f97", "#b0305f", "#5a5f66"};

const char* colour_of(size_t series) { return kColours[series % kColours.size()]; }

// Room of the values on one axis, and where they lie on the page.
class ScaledAxis {
 public:
  ScaledAxis(AxisScale scale, double low, double high, double from_px, double to_px)
      : scale_(scale), low_(low), high_(high > low ? high : low + 1), from_px_(from_px), to_px_(to_px) {}

  double place(double value) const {
    const double share = scale_ == AxisScale::kLog
                             ? (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_))
                             : (value - low_) / (high_ - low_);
    return from_px_ + share * (to_px_ - from_px_);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (scale_ == AxisScale::kLog) {
      for (double decade = std::pow(10, std::floor(std::log10(low_))); decade <= high_; decade *= 10)
        for (const double digit : {1.0, 2.0, 5.0})
          if (const double tick = decade * digit; tick >= low_ * 0.999 && tick <= high_ * 1.001)
            out.push_back(tick);
      return out;
    }
    const double rough = (high_ - low_) / 5;
    const double decade = std::pow(10, std::floor(std::log10(rough)));
    const double step = rough / decade < 1.5   ? decade
                        : rough / decade < 3.5 ? 2 * decade
                        : rough / decade < 7.5 ? 5 * decade
                                               : 10 * decade;
    for (double tick = std::ceil(low_ / step) * step; tick <= high_ + step * 1e-6; tick += step)
      out.push_back(tick);
    return out;
  }

 private:
  AxisScale scale_;
  double low_, high_, from_px_, to_px_;
};

std::string tick_text(double value) {
  if (value != 0 && (std::abs(value) >= 1e6 || std::abs(value) < 1e-3)) return fmt::format("{:.0e}", value);
  return fmt::format("{:.6g}", value);
}

std::string svg_head(const std::string& title) {
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n<text class=\"title\" x=\"{}\" "
      "y=\"20\">{}</text>\n",
      kWidth, kHeight, html_text(title), kLeft, html_text(title));
}

std::string legend(const std::vector<std::string>& names) {
  std::string out;
  double x = kLeft;
  for (size_t i = 0; i < names.size(); ++i) {
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.1f}\" "
        "y=\"41\">{}</text>\n",
        x, colour_of(i), x + 14, html_text(names[i]));
    x += 30 + 6.6 * static_cast<double>(names[i].size());
  }
  return out;
}

std::string y_grid(const ScaledAxis& y, const std::string& title) {
  std::string out;
  for (const double tick : y.ticks())
    out += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"end\" x=\"{}\" "
        "y=\"{:.1f}\">{}</text>\n",
        kLeft, kWidth - kRight, y.place(tick), y.place(tick), kLeft - 6, y.place(tick) + 4, tick_text(tick));
  return out + fmt::format("<text class=\"mid\" transform=\"translate(16 {}) rotate(-90)\">{}</text>\n",
                           (kTop + kHeight - kBottom) / 2, html_text(title));
}

std::pair<double, double> range_of(const std::vector<ChartSeries>& series, bool of_x, AxisScale scale) {
  double low = std::numeric_limits<double>::max(), high = std::numeric_limits<double>::lowest();
  for (const ChartSeries& one : series)
    for (const auto& point : one.points) {
      low = std::min(low, of_x ? point.first : point.second);
      high = std::max(high, of_x ? point.first : point.second);
    }
  if (scale == AxisScale::kLog) return {low / 1.3, high * 1.3};
  return {std::min(0.0, low), high * 1.05};
}

}  // namespace

std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string points_svg(const std::string& title, const ChartAxis& x, const ChartAxis& y,
                       std::vector<ChartSeries> series) {
  bool any = false;
  std::vector<std::string> names;
  for (ChartSeries& one : series) {
    names.push_back(one.name);
    if (one.labels.empty()) {  // labels belong to their places
      std::erase_if(one.points, [&](const auto& point) {
        return (x.scale == AxisScale::kLog && !(point.first > 0)) ||
               (y.scale == AxisScale::kLog && !(point.second > 0));
      });
      std::sort(one.points.begin(), one.points.end());
    }
    any = any || !one.points.empty();
  }
  if (!any) return "";
  const auto [x_low, x_high] = range_of(series, /*of_x=*/true, x.scale);
  const auto [y_low, y_high] = range_of(series, /*of_x=*/false, y.scale);
  const ScaledAxis across(x.scale, x_low, x_high, kLeft, kWidth - kRight);
  const ScaledAxis up(y.scale, y_low, y_high, kHeight - kBottom, kTop);
  std::string svg = svg_head(title) + legend(names) + y_grid(up, y.title);
  for (const double tick : across.ticks())
    svg += fmt::format("<text class=\"mid\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", across.place(tick),
                       kHeight - kBottom + 18, tick_text(tick));
  svg += fmt::format("<text class=\"mid\" x=\"{}\" y=\"{}\">{}</text>\n", (kLeft + kWidth - kRight) / 2,
                     kHeight - 12, html_text(x.title));
  for (size_t i = 0; i < series.size(); ++i) {
    const ChartSeries& one = series[i];
    std::string line;
    for (size_t k = 0; k < one.points.size(); ++k) {
      const double px = across.place(one.points[k].first), py = up.place(one.points[k].second);
      line += fmt::format("{:.1f},{:.1f} ", px, py);
      const std::string label = k < one.labels.size() ? one.labels[k] + ": " : "";
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}</title></circle>\n", px, py,
          colour_of(i),
          html_text(fmt::format("{}{:.6g}, {:.6g}", label, one.points[k].first, one.points[k].second)));
    }
    if (one.joined && one.points.size() > 1)
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", line,
                         colour_of(i));
  }
  return svg + "</svg>\n";
}

std::string bars_svg(const std::string& title, const std::string& unit,
                     const std::vector<std::string>& series, const std::vector<BarGroup>& groups) {
  if (groups.empty() || series.empty()) return "";
  double high = 0;
  for (const BarGroup& group : groups)
    for (const auto& value : group.values) high = std::max(high, value.value_or(0));
  const ScaledAxis up(AxisScale::kLinear, 0, high * 1.1, kHeight - kBottom, kTop);
  std::string svg = svg_head(title) + legend(series) + y_grid(up, unit);
  const double room = (kWidth - kLeft - kRight) / static_cast<double>(groups.size());
  const double bar = std::min(60.0, room * 0.8 / static_cast<double>(series.size()));
  for (size_t g = 0; g < groups.size(); ++g) {
    const double middle = kLeft + room * (static_cast<double>(g) + 0.5);
    double x = middle - bar * static_cast<double>(series.size()) / 2;
    for (size_t s = 0; s < groups[g].values.size(); ++s, x += bar) {
      if (!groups[g].values[s]) continue;
      const double value = *groups[g].values[s], top = up.place(value);
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill=\"{}\"><title>{}</title></rect>\n",
          x + 1, top, bar - 2, kHeight - kBottom - top, colour_of(s),
          html_text(fmt::format("{}: {:.6g}", series[s], value)));
      svg += fmt::format("<text class=\"mid\" x=\"{:.1f}\" y=\"{:.1f}\">{:.4g}</text>\n", x + bar / 2,
                         top - 4, value);
    }
    svg += fmt::format("<text class=\"mid\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", middle,
                       kHeight - kBottom + 18, html_text(groups[g].name));
  }
  return svg + "</svg>\n";
}

}  // namespace longspan::measure
