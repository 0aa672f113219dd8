// Compare: two results side by side, A against B, or A, B and A again. It says what may be said of them: a
// change within kNoisePercent is noise; a run whose two A's differ by more is void; so is one with failed
// requests, a prefix cache's hits, a cold round, another load or another machine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/environment_difference.h"
#include "measure/output_difference.h"
#include "measure/result_file.h"

namespace longspan::measure {

inline constexpr double kNoisePercent = 1;

enum class RatioVerdict : uint8_t { kNoise, kBetter, kWorse, kVoid };
const char* to_string(RatioVerdict verdict);

struct MetricRow {
  std::string group;  // a bucket, "weighted" over the buckets, "all", or a kernel's case
  std::string name;   // "output_throughput", "mean_ttft_ms"
  bool higher_is_better = false;
  double a = 0;
  double b = 0;
  std::optional<double> a_again;

  double baseline() const { return a_again ? (a + *a_again) / 2 : a; }
  double ratio() const { return b / baseline(); }
  double change_percent() const { return (ratio() - 1) * 100; }
  double drift_percent() const { return a_again ? (*a_again / a - 1) * 100 : 0; }  // A again against A
  RatioVerdict verdict() const;
};

struct Comparison {
  ResultKind kind = ResultKind::kEndToEnd;
  std::vector<std::string> voids;  // sentences; no ratio counts when there is one
  std::vector<MetricRow> rows;
  ComparedOutputs outputs;
  std::vector<std::string> counters;  // "dispatch.hits.vendor_prefill: 0 against 12"
  std::vector<EnvironmentDifference> environment;
  std::vector<std::string> remarks;  // what a reader must know, without which a ratio says less

  bool ok() const { return voids.empty() && outputs.differences.empty(); }
};

// Throws kInvalid for results of two kinds, or without a metric in common.
Comparison compare_results(const ResultFile& a, const ResultFile& b, const ResultFile* a_again = nullptr);

nlohmann::ordered_json to_json(const Comparison& comparison);
std::string to_text(const Comparison& comparison);

}  // namespace longspan::measure
