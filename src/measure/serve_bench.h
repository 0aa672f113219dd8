// ServeBench: a benchmark of a running server, end to end. Each group of prompts has a warm-up round of the
// same lengths and other texts, told apart from the measured one: the first round of a cold server is never a
// result.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "measure/dataset.h"
#include "measure/load_client.h"
#include "measure/serve_metrics.h"
#include "measure/server_state.h"

namespace longspan::measure {

struct ServeBenchOptions {
  LoadTarget target;
  LoadPlan load;
  DatasetOptions dataset;
  std::string tokenizer_dir;  // counts tokens here when the server has no /tokenize
  std::vector<double> percentiles = {99};
  std::vector<std::string> percentile_metrics = {"ttfr", "ttft", "tpot", "itl", "e2el"};
  std::string label;
};

// What a group of prompts gave.
struct GroupResult {
  PromptGroup group;
  LoadRound cold;  // of the warm-up; no answers when there was none
  LoadRound warm;  // the measured one
  ServeMetrics cold_metrics;
  ServeMetrics metrics;
  nlohmann::ordered_json counters_before;
  nlohmann::ordered_json counters_after;
};

struct ServeResult {
  std::string date;     // "20260131-235959"
  std::string counted;  // what counted the prompts' tokens
  std::vector<GroupResult> groups;
  ServeMetrics total;              // of all groups, one behind the other
  nlohmann::ordered_json server;   // what it said about itself
  std::vector<std::string> voids;  // why prefill figures are void
  std::vector<std::string> notes;  // what a reader must know: inexact lengths, cold, failed warm-up

  bool measured_cold() const;
  // Sum of weight * output tokens a second, of the contest's buckets.
  double score() const;
};

// `phase` is "warm-up 4K-8K" or "measured 4K-8K".
using ServeProgress = std::function<void(const std::string& phase, size_t done, size_t total)>;

// Throws what the dataset throws, and kEnvironment when the server cannot be reached.
ServeResult run_serve_bench(ServeBenchOptions& options, const ServeProgress& progress);

// The whole result: vLLM's keys, then ours (docs/MEASURE.md). `environment` is this side's.
nlohmann::ordered_json to_json(const ServeBenchOptions& options, const ServeResult& result,
                               const nlohmann::ordered_json& environment);

}  // namespace longspan::measure
