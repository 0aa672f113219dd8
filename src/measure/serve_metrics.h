// ServeMetrics: figures of a round of answers, with the names and definitions of vLLM's serving benchmark, so
// that its results and ours can be laid side by side. Percentiles lie linearly between two samples; std is of
// the whole population. Failed requests count in `failed` and nowhere else.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "measure/answer_record.h"
#include "measure/bench_prompt.h"

namespace longspan::measure {

struct MetricSpread {  // ms
  double mean = 0;
  double median = 0;
  double std = 0;
  std::vector<std::pair<double, double>> percentiles;  // (99, its value)
};

struct ServeMetrics {
  double duration_s = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  double request_throughput = 0;       // requests a second of duration_s
  double output_throughput = 0;        // tokens a second of duration_s
  double total_token_throughput = 0;   // input and output tokens
  double max_output_tokens_per_s = 0;  // chunks in the best second on the grid of the first request
  int64_t max_concurrent_requests = 0;
  // Prompt tokens over the sum of the times to the first token: what prefill does for one request at a time.
  double prefill_throughput = 0;
  MetricSpread ttfr, ttft, tpot, itl, e2el;
};

// Samples in seconds, in any order; all zero without samples.
MetricSpread spread_of(std::vector<double> seconds, std::span<const double> percentiles);

// [requests]; a prompt's token count is the usage's where there is one.
int64_t num_prompt_tokens(const AnswerRecord& answer, const BenchPrompt& prompt);
ServeMetrics serve_metrics(std::span<const AnswerRecord> answers, std::span<const BenchPrompt> prompts,
                           double duration_s, std::span<const double> percentiles);

// "duration", "completed", ..., "mean_ttft_ms", "p99_e2el_ms". `only` names the metrics whose spread is told:
// ttfr, ttft, tpot, itl, e2el.
nlohmann::ordered_json to_json(const ServeMetrics& metrics, std::span<const std::string> only);
std::vector<std::pair<std::string, const MetricSpread*>> spreads_of(const ServeMetrics& metrics);
std::string percentile_name(double percentile);  // "p99", "p99.9"

}  // namespace longspan::measure
