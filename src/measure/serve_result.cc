// The saved form of a serving benchmark: docs/MEASURE.md says what each key means.
#include <cmath>

#include "core/error.h"
#include "measure/serve_bench.h"
#include "text/utf8.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// FNV-1a: two files with other prompts are no comparison.
std::string prompt_hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return fmt::format("{:016x}", hash);
}

template <class T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json request_json(size_t index, const std::string& group, const AnswerRecord& answer,
                  const BenchPrompt& prompt) {
  const auto tpot = answer.tpot_s();
  return {{"index", index},
          {"bucket", group},
          {"id", answer.id},
          {"error", answer.error},
          {"prompt_hash", prompt_hash(prompt.text)},
          {"prompt_tokens", num_prompt_tokens(answer, prompt)},
          {"completion_tokens", answer.num_output_tokens()},
          {"cached_tokens", json_or_null(answer.cached_tokens)},
          {"finish_reason", answer.finish_reason},
          {"start_ms", answer.start_s * 1000},
          {"ttfr_ms", answer.ttfr_s * 1000},
          {"ttft_ms", answer.ttft_s * 1000},
          {"tpot_ms", tpot ? Json(*tpot * 1000) : Json(nullptr)},
          {"e2el_ms", answer.e2el_s * 1000},
          {"text", text::replace_invalid_utf8(answer.text)},
          {"reasoning", text::replace_invalid_utf8(answer.reasoning)},
          {"tool_calls", text::replace_invalid_utf8(answer.tool_calls)}};
}

// The arrays of vLLM's detailed results: one entry a request, in the order of the prompts.
void add_details(const ServeResult& result, Json& json) {
  for (const char* name : {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"})
    json[name] = Json::array();
  Json requests = Json::array();
  for (const GroupResult& group : result.groups)
    for (size_t i = 0; i < group.warm.answers.size(); ++i) {
      const AnswerRecord& answer = group.warm.answers[i];
      const BenchPrompt& prompt = group.group.measured[i];
      json["input_lens"].push_back(num_prompt_tokens(answer, prompt));
      json["output_lens"].push_back(answer.ok() ? answer.num_output_tokens() : 0);
      json["ttfts"].push_back(answer.ok() ? answer.ttft_s : 0.0);
      json["itls"].push_back(answer.itls_s);
      json["generated_texts"].push_back(text::replace_invalid_utf8(answer.text));
      json["errors"].push_back(answer.error);
      requests.push_back(request_json(requests.size(), group.group.name, answer, prompt));
    }
  json["requests"] = std::move(requests);
}

Json bucket_json(const ServeBenchOptions& options, const GroupResult& group) {
  Json json = {{"name", group.group.name}, {"weight", group.group.weight}};
  json.update(to_json(group.metrics, options.percentile_metrics));
  json["cold_round"] =
      group.cold.answers.empty() ? Json(nullptr) : to_json(group.cold_metrics, options.percentile_metrics);
  json["counters"] = counted_between(group.counters_before, group.counters_after);
  return json;
}

Json dataset_json(const ServeBenchOptions& options, const ServeResult& result) {
  const DatasetOptions& dataset = options.dataset;
  return {{"name", to_string(dataset.kind)},
          {"path", dataset.path},
          {"seed", dataset.seed},
          {"num_warmups", dataset.num_warm_up},
          {"input_len", dataset.kind == DatasetKind::kText ? Json(dataset.input_tokens) : Json(nullptr)},
          {"output_len", dataset.output_tokens > 0 ? Json(dataset.output_tokens) : Json(nullptr)},
          {"tokens_counted_by", result.counted}};
}

}  // namespace

Json to_json(const ServeBenchOptions& options, const ServeResult& result, const Json& environment) {
  const char* backend = options.target.endpoint == BenchEndpoint::kChat ? "openai-chat" : "openai";
  Json json = {
      {"kind", "end_to_end"},
      {"date", result.date},
      {"endpoint_type", backend},
      {"backend", backend},
      {"label", options.label.empty() ? Json(nullptr) : Json(options.label)},
      {"model_id", options.target.model},
      {"tokenizer_id", options.tokenizer_dir.empty() ? options.target.model : options.tokenizer_dir},
      {"num_prompts", options.dataset.num_prompts},
      {"request_rate", std::isinf(options.load.request_rate) ? Json("inf") : Json(options.load.request_rate)},
      {"burstiness", 1.0},
      {"max_concurrency",
       options.load.max_concurrency > 0 ? Json(options.load.max_concurrency) : Json(nullptr)}};
  json.update(to_json(result.total, options.percentile_metrics));
  json["endpoint"] = options.target.path;
  json["dataset"] = dataset_json(options, result);
  json["temperature"] = options.target.temperature;
  json["ignore_eos"] = options.target.ignore_eos;
  json["extra_body"] = options.target.extra_body;
  json["cold"] = result.measured_cold();
  json["void"] = result.voids;
  json["notes"] = result.notes;
  json["score"] = options.dataset.kind == DatasetKind::kBuckets ? Json(result.score()) : Json(nullptr);
  json["buckets"] = Json::array();
  Json counters = Json::object();
  for (const GroupResult& group : result.groups) {
    json["buckets"].push_back(bucket_json(options, group));
    counters = counted_together(counters, json["buckets"].back()["counters"]);
  }
  json["counters"] = std::move(counters);  // of the measured rounds alone
  json["environment"] = {{"client", environment}, {"server", result.server}};
  add_details(result, json);
  return json;
}

}  // namespace longspan::measure
