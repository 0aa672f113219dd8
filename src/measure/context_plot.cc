// The figures of `bench context` as text and as a plot.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "measure/context_bench.h"

namespace longspan::measure {
namespace {

constexpr int kPlotWidth = 72;
constexpr int kPlotHeight = 12;

// One panel: points as '*', the fit as '.'.
std::string panel(const std::string& title, const std::vector<std::pair<double, double>>& points,
                  const GrowthFit& fit) {
  double max_x = 1, max_y = 1e-9;
  for (const auto& [x, y] : points) {
    max_x = std::max(max_x, x);
    max_y = std::max({max_y, y, fit.at(x)});
  }
  std::vector<std::string> cells(kPlotHeight, std::string(kPlotWidth, ' '));
  const auto put = [&](double x, double y, char mark) {
    const int column = std::clamp(static_cast<int>(x / max_x * (kPlotWidth - 1)), 0, kPlotWidth - 1);
    const int row =
        std::clamp(static_cast<int>(std::lround(y / max_y * (kPlotHeight - 1))), 0, kPlotHeight - 1);
    cells[static_cast<size_t>(kPlotHeight - 1 - row)][static_cast<size_t>(column)] = mark;
  };
  for (int column = 0; column < kPlotWidth; ++column) {
    const double x = max_x * column / (kPlotWidth - 1);
    put(x, fit.at(x), '.');
  }
  for (const auto& [x, y] : points) put(x, y, '*');
  std::string text = fmt::format("{}\n{:>10.1f} |", title, max_y);
  for (size_t row = 0; row < cells.size(); ++row)
    text += (row == 0 ? "" : "           |") + cells[row] + "\n";
  text += fmt::format("         0 +{}\n{:>{}.0f}\n", std::string(kPlotWidth, '-'), max_x, kPlotWidth + 12);
  return text;
}

std::vector<std::pair<double, double>> prefill_points(const ContextResult& result) {
  std::vector<std::pair<double, double>> points;
  for (const ContextFigure& figure : result.figures)
    points.emplace_back(static_cast<double>(figure.context), figure.prefill_us_per_token());
  return points;
}

std::vector<std::pair<double, double>> decode_points(const ContextResult& result) {
  std::vector<std::pair<double, double>> points;
  for (const ContextFigure& figure : result.figures)
    points.emplace_back(static_cast<double>(figure.context), figure.decode_seconds * 1e6);
  return points;
}

// Over whole contexts, where the fit is over their middles.
GrowthFit over_whole_contexts(GrowthFit fit) {
  fit.slope_us /= 2;
  return fit;
}

}  // namespace

std::string growth_text(const ContextResult& result) {
  const auto line = [](const char* what, const GrowthFit& fit) {
    return fmt::format(
        "{:<8} {:>9.1f} us a token + {:.3f} us for every 1,000 tokens of context (fit within {:.1f} %)\n",
        what, fit.constant_us, fit.slope_us * 1e3, fit.worst_percent);
  };
  return line("prefill", result.prefill) + line("decode", result.decode);
}

std::string growth_plot(const ContextResult& result) {
  return panel("prefill, us a token, against context", prefill_points(result),
               over_whole_contexts(result.prefill)) +
         panel("decode, us a token, against context", decode_points(result), result.decode);
}

std::string growth_script(const ContextResult& result, const std::string& image) {
  std::string script = fmt::format(
      "set terminal pngcairo size 1100,520\nset output '{}'\nset multiplot layout 1,2\n"
      "set xlabel 'context, tokens'\nset ylabel 'us a token'\nset key left top\n"
      "set xrange [0:*]\nset yrange [0:*]\n",
      image);
  const auto panel_script = [&](const char* title, const std::vector<std::pair<double, double>>& points,
                                const GrowthFit& fit) {
    script += fmt::format("$data << end\n");
    for (const auto& [x, y] : points) script += fmt::format("{} {}\n", x, y);
    script += fmt::format("end\nplot $data with points pt 7 title '{}', {} + {} * x with lines title 'fit'\n",
                          title, fit.constant_us, fit.slope_us);
  };
  panel_script("prefill", prefill_points(result), over_whole_contexts(result.prefill));
  panel_script("decode", decode_points(result), result.decode);
  return script + "unset multiplot\n";
}

}  // namespace longspan::measure
