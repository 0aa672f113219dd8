// ReportPage: one HTML file about the saved results of a folder, which needs nothing from anywhere else. Each
// kind of number has a part of its own, and no part mixes two.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace longspan::measure {

// A JSON file of a folder (or of a folder in it) that is a measurement.
struct SavedResult {
  std::string name;  // its label, or its path from the folder on
  nlohmann::ordered_json json;
};

struct ReportSources {
  std::vector<SavedResult> serving;   // kind end_to_end, in the order of their dates
  std::vector<SavedResult> profiles;  // kind profile, by their start
  std::vector<SavedResult> contexts;  // kind context
  std::vector<SavedResult> kernels;   // kind kernel
  std::vector<std::string> skipped;   // JSON files that are none of these

  bool empty() const { return serving.empty() && profiles.empty() && contexts.empty() && kernels.empty(); }
};

// Looks two folders deep, since a profile is a folder. Throws kNotFound when there is no such folder.
ReportSources read_report_sources(const std::filesystem::path& folder);

std::string report_html(const ReportSources& sources);

// (prompt tokens, ms) of each answered request: what the curves against context are made of.
std::vector<std::pair<double, double>> request_points(const nlohmann::ordered_json& serving,
                                                      const char* metric);

}  // namespace longspan::measure
