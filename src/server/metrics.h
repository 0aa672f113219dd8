// Metrics: counters and histograms of finished requests, and their text for Prometheus.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "server/generation.h"

namespace longspan::server {

// Counts of values by upper bound. Not thread-safe.
class Histogram final {
 public:
  // `bounds` ascend and outlive the histogram.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}

  void add(double value);
  void merge(const Histogram& other);  // of the same bounds

  // Prometheus' _bucket, _sum and _count lines; `labels` without braces.
  std::string text(const std::string& name, const std::string& labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<int64_t> counts_;  // [bounds + 1] values in (bounds[i - 1], bounds[i]]; the last: above all
  double sum_ = 0;
};

std::span<const double> latency_bounds();  // seconds, 1 ms to 2 hours: prompts may be read for long
std::span<const double> token_bounds();    // 1-2-5 steps to a million

// What one request was, once it is over.
struct FinishedRequest {
  FinishReason reason = FinishReason::kStop;
  Usage usage;
  double ttft_seconds = -1;     // from arrival to the first token; negative: there was none
  double queue_seconds = -1;    // from submission to its first step; negative, as below: it never came to it
  double prefill_seconds = -1;  // from there to the first token
  double decode_seconds = -1;   // from there to the last token
  double total_seconds = 0;
  Histogram inter_token{latency_bounds()};
};

enum class MetricsNames : uint8_t {
  kOwn,
  kVllmToo
};  // longspan_* alone, or with vllm:* aliases for dashboards

// Thread-safe.
class Metrics final {
 public:
  void record(const FinishedRequest& request);
  void record_refusal();  // a request that the queue's limit or a shutdown turned away

  std::string text(const engine::EngineStatus& status, const engine::EngineInfo& info,
                   const std::string& model_name, MetricsNames names) const;

 private:
  static constexpr size_t kNumReasons = 5;  // of FinishReason

  mutable std::mutex mutex_;  // guards all below
  int64_t num_finished_[kNumReasons] = {};
  int64_t num_refused_ = 0;
  int64_t num_prompt_tokens_ = 0;
  int64_t num_completion_tokens_ = 0;
  int64_t num_cached_tokens_ = 0;
  Histogram ttft_{latency_bounds()};
  Histogram queue_{latency_bounds()};
  Histogram prefill_{latency_bounds()};
  Histogram decode_{latency_bounds()};
  Histogram inter_token_{latency_bounds()};
  Histogram total_{latency_bounds()};
  Histogram prompt_{token_bounds()};
  Histogram completion_{token_bounds()};
};

const char* reason_label(FinishReason reason);  // "stop", "length", "tool_calls", "abort", "error"

}  // namespace longspan::server
