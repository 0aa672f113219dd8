#include "measure/serve_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

double sample_percentile(const std::vector<double>& sorted, double percent) {
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

// Seconds on a grid that begins with the first request: chunks that came in each, requests that ran in each.
void add_peaks(std::span<const AnswerRecord> answers, ServeMetrics& metrics) {
  double first = std::numeric_limits<double>::max(), last = 0;
  for (const AnswerRecord& answer : answers) {
    if (!answer.ok()) continue;
    first = std::min(first, answer.start_s);
    last = std::max(last, answer.start_s + answer.e2el_s);
  }
  if (last < first) return;
  std::vector<int64_t> chunks(static_cast<size_t>(last - first) + 1), running(chunks.size());
  for (const AnswerRecord& answer : answers) {
    if (!answer.ok()) continue;
    const double start = answer.start_s - first;
    double time = start + answer.ttft_s;
    const auto count_chunk = [&] { ++chunks[std::min(static_cast<size_t>(time), chunks.size() - 1)]; };
    count_chunk();
    for (const double itl : answer.itls_s) {
      time += itl;
      count_chunk();
    }
    const auto end = std::min(static_cast<size_t>(start + answer.e2el_s), running.size() - 1);
    for (auto second = static_cast<size_t>(start); second <= end; ++second) ++running[second];
  }
  metrics.max_output_tokens_per_s = static_cast<double>(*std::max_element(chunks.begin(), chunks.end()));
  metrics.max_concurrent_requests = *std::max_element(running.begin(), running.end());
}

}  // namespace

MetricSpread spread_of(std::vector<double> seconds, std::span<const double> percentiles) {
  MetricSpread spread;
  if (seconds.empty()) {
    for (const double percent : percentiles) spread.percentiles.emplace_back(percent, 0.0);
    return spread;
  }
  std::sort(seconds.begin(), seconds.end());
  const auto count = static_cast<double>(seconds.size());
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double value : seconds) squares += (value - mean) * (value - mean);
  spread.mean = mean * 1000;
  spread.median = sample_percentile(seconds, 50) * 1000;
  spread.std = std::sqrt(squares / count) * 1000;
  for (const double percent : percentiles)
    spread.percentiles.emplace_back(percent, sample_percentile(seconds, percent) * 1000);
  return spread;
}

int64_t num_prompt_tokens(const AnswerRecord& answer, const BenchPrompt& prompt) {
  return answer.prompt_tokens.value_or(prompt.num_tokens);
}

ServeMetrics serve_metrics(std::span<const AnswerRecord> answers, std::span<const BenchPrompt> prompts,
                           double duration_s, std::span<const double> percentiles) {
  CHECK(answers.size() == prompts.size());
  ServeMetrics metrics{.duration_s = duration_s};
  std::vector<double> ttfrs, ttfts, tpots, itls, e2els;
  for (size_t i = 0; i < answers.size(); ++i) {
    const AnswerRecord& answer = answers[i];
    if (!answer.ok()) {
      ++metrics.failed;
      continue;
    }
    ++metrics.completed;
    metrics.total_input_tokens += num_prompt_tokens(answer, prompts[i]);
    metrics.total_output_tokens += answer.num_output_tokens();
    ttfrs.push_back(answer.ttfr_s);
    ttfts.push_back(answer.ttft_s);
    e2els.push_back(answer.e2el_s);
    if (const auto tpot = answer.tpot_s()) tpots.push_back(*tpot);
    itls.insert(itls.end(), answer.itls_s.begin(), answer.itls_s.end());
  }
  const auto input = static_cast<double>(metrics.total_input_tokens);
  const auto output = static_cast<double>(metrics.total_output_tokens);
  if (duration_s > 0) {
    metrics.request_throughput = static_cast<double>(metrics.completed) / duration_s;
    metrics.output_throughput = output / duration_s;
    metrics.total_token_throughput = (input + output) / duration_s;
  }
  const double prefill_s = std::accumulate(ttfts.begin(), ttfts.end(), 0.0);
  if (prefill_s > 0) metrics.prefill_throughput = input / prefill_s;
  metrics.ttfr = spread_of(std::move(ttfrs), percentiles);
  metrics.ttft = spread_of(std::move(ttfts), percentiles);
  metrics.tpot = spread_of(std::move(tpots), percentiles);
  metrics.itl = spread_of(std::move(itls), percentiles);
  metrics.e2el = spread_of(std::move(e2els), percentiles);
  add_peaks(answers, metrics);
  return metrics;
}

std::vector<std::pair<std::string, const MetricSpread*>> spreads_of(const ServeMetrics& metrics) {
  return {{"ttfr", &metrics.ttfr},
          {"ttft", &metrics.ttft},
          {"tpot", &metrics.tpot},
          {"itl", &metrics.itl},
          {"e2el", &metrics.e2el}};
}

std::string percentile_name(double percentile) {
  return percentile == std::floor(percentile) ? fmt::format("p{:.0f}", percentile)
                                              : fmt::format("p{}", percentile);
}

Json to_json(const ServeMetrics& metrics, std::span<const std::string> only) {
  Json json = {{"duration", metrics.duration_s},
               {"completed", metrics.completed},
               {"failed", metrics.failed},
               {"total_input_tokens", metrics.total_input_tokens},
               {"total_output_tokens", metrics.total_output_tokens},
               {"request_throughput", metrics.request_throughput},
               {"request_goodput", nullptr},
               {"output_throughput", metrics.output_throughput},
               {"total_token_throughput", metrics.total_token_throughput},
               {"max_output_tokens_per_s", metrics.max_output_tokens_per_s},
               {"max_concurrent_requests", metrics.max_concurrent_requests},
               {"prefill_throughput", metrics.prefill_throughput}};
  for (const auto& [name, spread] : spreads_of(metrics)) {
    if (std::find(only.begin(), only.end(), name) == only.end()) continue;
    json["mean_" + name + "_ms"] = spread->mean;
    json["median_" + name + "_ms"] = spread->median;
    json["std_" + name + "_ms"] = spread->std;
    for (const auto& [percentile, value] : spread->percentiles)
      json[percentile_name(percentile) + "_" + name + "_ms"] = value;
  }
  return json;
}

}  // namespace longspan::measure
