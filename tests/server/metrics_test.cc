// What /metrics says of requests and of the engine, line by line.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <array>

namespace longspan::testing {
namespace {

using server::FinishedRequest;
using server::Metrics;
using server::MetricsNames;

std::string text_of(const Metrics& metrics, MetricsNames names = MetricsNames::kOwn,
                    const engine::EngineStatus& status = {}) {
  return metrics.text(status, engine::EngineInfo{}, "tiny", names);
}

// The value of `series`, whose labels but the model's are given; "none" where there is no such line.
std::string value(const std::string& text, const std::string& name, const std::string& labels = "") {
  const std::string series =
      "\n" + name + "{model_name=\"tiny\"" + (labels.empty() ? "" : "," + labels) + "} ";
  const size_t at = text.find(series);
  if (at == std::string::npos) return "none";
  const size_t begin = at + series.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string bucket(const std::string& text, const std::string& name, const std::string& bound) {
  return value(text, name + "_bucket", "le=\"" + bound + "\"");
}

// Waited 20 ms, read its prompt for 0.25 s, which is a bound, and decoded for 3 hours.
FinishedRequest answered() {
  return {.ttft_seconds = 0.28, .queue_seconds = 0.02, .prefill_seconds = 0.25, .decode_seconds = 10'800};
}

TEST(Metrics, a_value_counts_in_its_bucket_and_in_all_above) {
  Metrics metrics;
  metrics.record(answered());
  const std::string text = text_of(metrics);
  const std::string queue = "longspan_request_queue_time_seconds";
  EXPECT_EQ(bucket(text, queue, "0.01"), "0");
  EXPECT_EQ(bucket(text, queue, "0.025"), "1");
  EXPECT_EQ(bucket(text, queue, "7680"), "1");
  EXPECT_EQ(value(text, queue + "_sum"), "0.02");
  EXPECT_EQ(value(text, queue + "_count"), "1");
  const std::string prefill = "longspan_request_prefill_time_seconds";
  EXPECT_EQ(bucket(text, prefill, "0.1"), "0");
  EXPECT_EQ(bucket(text, prefill, "0.25"), "1");  // bounds belong to their bucket
  const std::string decode = "longspan_request_decode_time_seconds";
  EXPECT_EQ(bucket(text, decode, "7680"), "0");
  EXPECT_EQ(bucket(text, decode, "+Inf"), "1");
  EXPECT_EQ(value(text, decode + "_sum"), "10800");
}

TEST(Metrics, what_a_request_never_came_to_is_not_counted) {
  Metrics metrics;
  metrics.record(answered());
  metrics.record({.reason = server::FinishReason::kCancelled});                          // while it waited
  metrics.record({.reason = server::FinishReason::kCancelled, .queue_seconds = 0.004});  // in its prefill
  const std::string text = text_of(metrics);
  EXPECT_EQ(value(text, "longspan_request_queue_time_seconds_count"), "2");
  EXPECT_EQ(bucket(text, "longspan_request_queue_time_seconds", "0.005"), "1");
  EXPECT_EQ(value(text, "longspan_request_prefill_time_seconds_count"), "1");
  EXPECT_EQ(value(text, "longspan_request_decode_time_seconds_count"), "1");
  EXPECT_EQ(value(text, "longspan_requests_finished_total", "finished_reason=\"abort\""), "2");
}

TEST(Metrics, names_of_vllm_are_there_when_asked_for) {
  Metrics metrics;
  metrics.record(answered());
  EXPECT_EQ(text_of(metrics).find("vllm:"), std::string::npos);
  const std::string text = text_of(metrics, MetricsNames::kVllmToo);
  for (const char* name : {"request_queue_time_seconds", "request_prefill_time_seconds",
                           "request_decode_time_seconds", "e2e_request_latency_seconds"})
    EXPECT_EQ(value(text, std::string("vllm:") + name + "_count"), "1") << name;
}

TEST(Metrics, decode_inputs_by_their_first_failed_condition) {
  engine::EngineStatus status;
  status.inputs.reserved = true;
  status.inputs.num_dispatched = 41;
  for (size_t i = 0; i < engine::kNumSteadyConditions; ++i)
    status.inputs.misses[i] = static_cast<int64_t>(10 + i);
  const std::string text = text_of(Metrics(), MetricsNames::kOwn, status);
  EXPECT_EQ(value(text, "longspan_decode_inputs_reserved"), "1");
  EXPECT_EQ(value(text, "longspan_decode_inputs_dispatched_total"), "41");
  EXPECT_EQ(value(text, "longspan_decode_input_misses_total", "condition=\"one_sequence\""), "10");
  EXPECT_EQ(value(text, "longspan_decode_input_misses_total", "condition=\"next_position\""), "15");
}

TEST(Metrics, inputs_that_the_device_wrote_and_why_others_were_copied) {
  engine::EngineStatus status;
  status.mirror = {.num_advanced = 30, .num_table_uploads = 2, .uploads = {7, 4}};
  const std::string text = text_of(Metrics(), MetricsNames::kOwn, status);
  EXPECT_EQ(value(text, "longspan_decode_inputs_on_device_total"), "30");
  EXPECT_EQ(value(text, "longspan_decode_input_table_uploads_total"), "2");
  EXPECT_EQ(value(text, "longspan_input_uploads_total", "reason=\"not_steady\""), "7");
  EXPECT_EQ(value(text, "longspan_input_uploads_total", "reason=\"token_on_host\""), "4");
}

}  // namespace
}  // namespace longspan::testing
