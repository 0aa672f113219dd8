#include "measure/gnuplot.h"

#include <cstdio>
#include <cstdlib>

#include "core/error.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;

bool on_path(const std::string& program) {
  const char* list = std::getenv("PATH");
  const std::string path = list == nullptr ? "" : list;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    std::error_code ignored;
    if (end > begin && fs::is_regular_file(fs::path(path.substr(begin, end - begin)) / program, ignored))
      return true;
    begin = end + 1;
  }
  return false;
}

// In single quotes nothing is special to gnuplot but the quote, which is doubled.
std::string gnuplot_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text)
    out += c == '\'' ? std::string("''") : c == '\n' ? std::string(" ") : std::string(1, c);
  return out + "'";
}

bool run_gnuplot(const std::string& script) {
  std::FILE* pipe = ::popen("gnuplot 2>/dev/null", "w");
  if (pipe == nullptr) return false;
  const bool sent = std::fwrite(script.data(), 1, script.size(), pipe) == script.size();
  return ::pclose(pipe) == 0 && sent;
}

}  // namespace

std::string gnuplot_script(const ReportSources& sources, const char* metric, const std::string& title,
                           const fs::path& png) {
  std::string data, plots;
  for (const SavedResult& result : sources.serving) {
    const auto points = request_points(result.json, metric);
    if (points.empty()) continue;
    plots += fmt::format("{}'-' using 1:2 with linespoints pointtype 7 title {}", plots.empty() ? "" : ", ",
                         gnuplot_quoted(result.name));
    for (const auto& [tokens, ms] : points) data += fmt::format("{} {}\n", tokens, ms);
    data += "e\n";
  }
  if (plots.empty()) return "";
  return fmt::format(
      "set terminal png size 1000,500 noenhanced\nset output {}\nset title {}\nset xlabel 'prompt "
      "tokens'\nset ylabel 'ms'\n"
      "set yrange [0:*]\nset grid\nset key left top\nplot {}\n{}",
      gnuplot_quoted(png.string()), gnuplot_quoted(title), plots, data);
}

PngPlots draw_png_plots(const ReportSources& sources, const fs::path& folder) {
  PngPlots plots;
  if (!on_path("gnuplot")) {
    plots.skipped =
        "no PNG: there is no gnuplot here (Debian package gnuplot-nox); the HTML has the same curves";
    return plots;
  }
  const std::pair<const char*, const char*> curves[] = {{"ttft_ms", "Time to first token against context"},
                                                        {"tpot_ms", "Time per output token against context"}};
  for (const auto& [metric, title] : curves) {
    const fs::path png = folder / (std::string(metric, 4) + ".png");
    const std::string script = gnuplot_script(sources, metric, title, png);
    if (script.empty()) continue;
    if (run_gnuplot(script))
      plots.files.push_back(png);
    else
      plots.skipped = "gnuplot failed on " + png.string();
  }
  if (plots.files.empty() && plots.skipped.empty()) plots.skipped = "no PNG: no result holds single requests";
  return plots;
}

}  // namespace longspan::measure
