// Gnuplot: the curves of a report as PNG files, drawn by the gnuplot program where the machine has it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "measure/report_page.h"

namespace longspan::measure {

struct PngPlots {
  std::vector<std::filesystem::path> files;
  std::string skipped;  // why there are none; empty when there are
};

// Writes ttft.png and tpot.png into `folder`. Never throws for a missing program.
PngPlots draw_png_plots(const ReportSources& sources, const std::filesystem::path& folder);

// What gnuplot is given on its standard input.
std::string gnuplot_script(const ReportSources& sources, const char* metric, const std::string& title,
                           const std::filesystem::path& png);

}  // namespace longspan::measure
