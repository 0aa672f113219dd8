#include "server/metrics.h"

#include <algorithm>

namespace longspan::server {
namespace {

constexpr double kLatencyBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,  1,    2.5,
                                     5,     10,     20,    40,   80,    160,  320, 640,  1280, 2560, 7680};
constexpr double kTokenBounds[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                   2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

// The text of one scrape.
class Page {
 public:
  Page(std::string labels, bool aliases) : labels_(std::move(labels)), aliases_(aliases) {}

  // `alias`: the name that vLLM's dashboards look for, without its prefix; null: they have none.
  void sample(const char* kind, const std::string& name, double value, const char* help,
              const char* alias = nullptr, const std::string& more_labels = "") {
    one(kind, "longspan_" + name, value, help, more_labels);
    if (alias && aliases_) one(kind, std::string("vllm:") + alias, value, help, more_labels);
  }
  void histogram(const std::string& name, const Histogram& values, const char* help, const char* alias) {
    head("histogram", "longspan_" + name, help);
    text_ += values.text("longspan_" + name, labels_);
    if (!aliases_) return;
    head("histogram", std::string("vllm:") + alias, help);
    text_ += values.text(std::string("vllm:") + alias, labels_);
  }
  std::string take() { return std::move(text_); }

 private:
  void head(const std::string& kind, const std::string& name, const char* help) {
    if (name == last_name_) return;  // one head for the samples of a family
    last_name_ = name;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
  }
  void one(const char* kind, const std::string& name, double value, const char* help,
           const std::string& more_labels) {
    head(kind, name, help);
    text_ +=
        fmt::format("{}{{{}{}}} {}\n", name, labels_, more_labels.empty() ? "" : "," + more_labels, value);
  }

  std::string labels_;
  bool aliases_;
  std::string last_name_;
  std::string text_;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// A counter for each reason; name_of(i) is that of counts[i].
void add_by_reason(Page& page, const char* name, const char* help, const char* label,
                   std::span<const int64_t> counts, std::string_view (*name_of)(size_t)) {
  for (size_t i = 0; i < counts.size(); ++i)
    page.sample("counter", name, static_cast<double>(counts[i]), help, nullptr,
                fmt::format("{}=\"{}\"", label, name_of(i)));
}

void add_inputs(Page& page, const engine::InputCounters& inputs) {
  page.sample("gauge", "decode_inputs_reserved", inputs.reserved ? 1 : 0,
              "1: steps that decode one sequence may move the inputs of the last step on");
  page.sample("counter", "decode_inputs_dispatched_total", static_cast<double>(inputs.num_dispatched),
              "Steps that did");
  add_by_reason(page, "decode_input_misses_total", "Other steps, by the first condition that failed",
                "condition", inputs.misses, engine::steady_condition);
}

void add_mirror(Page& page, const engine::MirrorCounters& mirror) {
  page.sample("counter", "decode_inputs_on_device_total", static_cast<double>(mirror.num_advanced),
              "Steps whose inputs the device wrote, nothing being copied to it");
  page.sample("counter", "decode_input_table_uploads_total", static_cast<double>(mirror.num_table_uploads),
              "In those steps: tables that had changed and were copied");
  add_by_reason(page, "input_uploads_total",
                "Steps whose inputs were copied to the device, by the first reason", "reason", mirror.uploads,
                engine::upload_reason);
}

void add_sampling(Page& page, const engine::SamplingCounters& sampling) {
  page.sample("counter", "steps_sampled_on_device_total", static_cast<double>(sampling.num_on_device),
              "Steps whose tokens were chosen on the device, no logits leaving it");
  page.sample("counter", "sampling_row_uploads_total", static_cast<double>(sampling.num_row_uploads),
              "In those steps: parameters that were copied to the device");
  add_by_reason(page, "steps_sampled_on_host_total", "Other steps, by the first reason", "reason",
                sampling.on_host, engine::host_sampling);
}

void add_engine(Page& page, const engine::EngineStatus& status, const engine::EngineInfo& info) {
  const auto& schedule = status.schedule;
  const double num_pages = status.pages.num_pages;
  const double used = num_pages - status.pages.num_free - status.num_cached_pages;
  page.sample("gauge", "requests_running", schedule.num_running, "Requests in the engine's steps",
              "num_requests_running");
  page.sample("gauge", "requests_waiting",
              static_cast<double>(schedule.num_waiting + schedule.num_swapped + status.num_inbox),
              "Requests that wait for room", "num_requests_waiting");
  page.sample("gauge", "cache_usage_ratio", num_pages > 0 ? used / num_pages : 0,
              "Share of cache pages in use, 0 to 1", "kv_cache_usage_perc");
  page.sample("gauge", "cache_pages", num_pages, "Pages of the cache");
  page.sample("gauge", "cache_page_tokens", static_cast<double>(info.page_plan.page_tokens),
              "Tokens of a page");
  page.sample("gauge", "max_model_len", static_cast<double>(info.max_model_len),
              "Tokens of prompt and answer");
  page.sample("gauge", "engine_healthy", status.healthy ? 1 : 0, "0: the engine died");
  page.sample("gauge", "engine_step_seconds", status.stalled_seconds, "Age of the step under way");
  page.sample("gauge", "prefill_tokens_per_second", status.prefill_tokens_per_second,
              "Smoothed speed of prefill");
  page.sample("counter", "engine_steps_total", static_cast<double>(schedule.num_steps),
              "Steps of the engine");
  page.sample("counter", "prefill_tokens_total", static_cast<double>(schedule.num_prefill_tokens),
              "Prompt tokens computed");
  page.sample("counter", "decode_tokens_total", static_cast<double>(schedule.num_decode_tokens),
              "Answer tokens computed");
  page.sample("counter", "prefix_hit_tokens_total", static_cast<double>(schedule.num_cached_tokens),
              "Prompt tokens taken from the prefix cache", "prefix_cache_hits_total");
  page.sample("counter", "prefix_queried_tokens_total", static_cast<double>(status.prefix.num_queried_tokens),
              "Prompt tokens looked up in the prefix cache", "prefix_cache_queries_total");
  page.sample("gauge", "cached_pages", status.num_cached_pages, "Pages that only the prefix cache holds");
  page.sample("counter", "preemptions_total",
              static_cast<double>(schedule.num_swap_outs + schedule.num_replays),
              "Requests that had to give their pages back", "num_preemptions_total");
  page.sample("counter", "non_finite_total", static_cast<double>(status.num_non_finite),
              "Requests ended by logits that were not finite", "corrupted_requests_total");
  page.sample("counter", "kv_saturated_total", static_cast<double>(status.num_kv_saturated),
              "Elements of K and V beyond what an FP8 cache holds");
  for (size_t i = 0; i < engine::kNumPaths; ++i)
    page.sample("counter", "attention_dispatches_total", static_cast<double>(status.dispatch.hits[i]),
                "Runs of an attention path", nullptr,
                fmt::format("path=\"{}\"", engine::to_string(static_cast<ops::AttentionPath>(i))));
  for (size_t i = 0; i < engine::kMaxConditions; ++i) {
    const std::string_view condition = engine::vendor_prefill_condition(i);
    if (condition.empty()) break;
    page.sample("counter", "vendor_prefill_misses_total", static_cast<double>(status.dispatch.misses[i]),
                "Gate misses by the first condition that failed", nullptr,
                fmt::format("condition=\"{}\"", condition));
  }
  add_inputs(page, status.inputs);
  add_mirror(page, status.mirror);
  add_sampling(page, status.sampling);
}

}  // namespace

std::span<const double> latency_bounds() { return kLatencyBounds; }
std::span<const double> token_bounds() { return kTokenBounds; }

void Histogram::add(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(at - bounds_.begin())];
  sum_ += value;
}

void Histogram::merge(const Histogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  sum_ += other.sum_;
}

std::string Histogram::text(const std::string& name, const std::string& labels) const {
  std::string out;
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, count);
  }
  return out + fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, count);
}

const char* reason_label(FinishReason reason) {
  constexpr const char* kLabels[] = {"stop", "length", "tool_calls", "abort", "error"};
  return kLabels[static_cast<size_t>(reason)];
}

void Metrics::record(const FinishedRequest& request) {
  const std::lock_guard lock(mutex_);
  ++num_finished_[static_cast<size_t>(request.reason)];
  num_prompt_tokens_ += request.usage.prompt_tokens;
  num_completion_tokens_ += request.usage.completion_tokens;
  num_cached_tokens_ += request.usage.cached_tokens;
  if (request.ttft_seconds >= 0) ttft_.add(request.ttft_seconds);
  if (request.queue_seconds >= 0) queue_.add(request.queue_seconds);
  if (request.prefill_seconds >= 0) prefill_.add(request.prefill_seconds);
  if (request.decode_seconds >= 0) decode_.add(request.decode_seconds);
  inter_token_.merge(request.inter_token);
  total_.add(request.total_seconds);
  prompt_.add(static_cast<double>(request.usage.prompt_tokens));
  completion_.add(static_cast<double>(request.usage.completion_tokens));
}

void Metrics::record_refusal() {
  const std::lock_guard lock(mutex_);
  ++num_refused_;
}

std::string Metrics::text(const engine::EngineStatus& status, const engine::EngineInfo& info,
                          const std::string& model_name, MetricsNames names) const {
  Page page(fmt::format("model_name=\"{}\"", escaped(model_name)), names == MetricsNames::kVllmToo);
  add_engine(page, status, info);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < kNumReasons; ++i) {
    const std::string reason = reason_label(static_cast<FinishReason>(i));
    page.sample("counter", "requests_finished_total", static_cast<double>(num_finished_[i]),
                "Requests by their end", nullptr, fmt::format("finished_reason=\"{}\"", reason));
  }
  page.sample("counter", "requests_refused_total", static_cast<double>(num_refused_),
              "Requests turned away because the queue was full or the server shuts down",
              "admission_rejections_total");
  page.sample("counter", "prompt_tokens_total", static_cast<double>(num_prompt_tokens_),
              "Prompt tokens of finished requests", "prompt_tokens_total");
  page.sample("counter", "generation_tokens_total", static_cast<double>(num_completion_tokens_),
              "Answer tokens of finished requests", "generation_tokens_total");
  page.sample("counter", "cached_tokens_total", static_cast<double>(num_cached_tokens_),
              "Prompt tokens of finished requests that came from the cache");
  page.histogram("time_to_first_token_seconds", ttft_, "From arrival to the first token",
                 "time_to_first_token_seconds");
  page.histogram("inter_token_latency_seconds", inter_token_, "Between two tokens of an answer",
                 "inter_token_latency_seconds");
  page.histogram("request_queue_time_seconds", queue_, "From submission to the first step with the request",
                 "request_queue_time_seconds");
  page.histogram("request_prefill_time_seconds", prefill_, "From the first step to the first token",
                 "request_prefill_time_seconds");
  page.histogram("request_decode_time_seconds", decode_, "From the first token to the last",
                 "request_decode_time_seconds");
  page.histogram("request_seconds", total_, "From arrival to the end", "e2e_request_latency_seconds");
  page.histogram("request_prompt_tokens", prompt_, "Prompt tokens of a request", "request_prompt_tokens");
  page.histogram("request_generation_tokens", completion_, "Answer tokens of a request",
                 "request_generation_tokens");
  return page.take();
}

}  // namespace longspan::server
