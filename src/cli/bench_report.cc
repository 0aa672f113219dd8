// `longspan bench report`: one HTML page, and PNG curves where gnuplot is installed, from a folder of
// results.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <fstream>

#include "cli/bench.h"
#include "core/error.h"
#include "measure/gnuplot.h"
#include "measure/report_page.h"

namespace longspan::cli {
namespace {

struct BenchReportFlags {
  std::string folder;
  std::string out;
  bool json = false;
};

int bench_report(const BenchReportFlags& flags) {
  const measure::ReportSources sources = measure::read_report_sources(flags.folder);
  if (sources.empty())
    fail(ErrorKind::kNotFound,
         "{}: no saved result (bench serve --save-result, bench kernel, profile report)", flags.folder);
  const std::filesystem::path page = flags.out.empty() ? std::filesystem::path(flags.folder) / "report.html"
                                                       : std::filesystem::path(flags.out);
  std::ofstream file(page, std::ios::binary);
  file << measure::report_html(sources);
  if (!file.flush()) fail(ErrorKind::kEnvironment, "cannot write {}", page.string());
  const measure::PngPlots plots = measure::draw_png_plots(sources, page.parent_path());
  if (flags.json) {
    nlohmann::ordered_json json = {{"html", page.string()}, {"png", nlohmann::ordered_json::array()}};
    for (const auto& path : plots.files) json["png"].push_back(path.string());
    json["png_skipped"] = plots.skipped;
    json["not_measurements"] = sources.skipped;
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  std::printf("%s: %zu end to end, %zu profiles, %zu context curves, %zu of kernels\n", page.c_str(),
              sources.serving.size(), sources.profiles.size(), sources.contexts.size(),
              sources.kernels.size());
  for (const auto& path : plots.files) std::printf("%s\n", path.c_str());
  if (!plots.skipped.empty()) std::printf("%s\n", plots.skipped.c_str());
  for (const std::string& path : sources.skipped) std::printf("%s: no measurement, left out\n", path.c_str());
  return 0;
}

}  // namespace

void add_bench_report(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<BenchReportFlags>();
  CLI::App* report = bench.add_subcommand("report", "One HTML page from a folder of saved results");
  report->add_option("DIR", flags->folder, "Folder with JSON results; profiles may be folders in it")
      ->required();
  report->add_option("--out", flags->out, "The page; default: DIR/report.html");
  report->add_flag("--json", flags->json, "Print JSON");
  report->callback([flags, &exit_code] { exit_code = bench_report(*flags); });
}

}  // namespace longspan::cli
