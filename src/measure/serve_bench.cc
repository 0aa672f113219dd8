#include "measure/serve_bench.h"

#include <chrono>
#include <ctime>

#include "core/error.h"
#include "measure/token_counter.h"

namespace longspan::measure {
namespace {

TokenCounter choose_counter(const ServeBenchOptions& options) {
  if (!options.tokenizer_dir.empty()) return local_token_counter(options.tokenizer_dir, options.target);
  return server_token_counter(options.target);
}

std::string date_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  return text;
}

GroupResult run_group(const ServeBenchOptions& options, PromptGroup group, const ServeProgress& progress) {
  GroupResult result{.group = std::move(group)};
  const auto run = [&](const std::string& phase, std::span<const BenchPrompt> prompts) {
    return run_round(options.target, prompts, options.load, [&](size_t done, size_t total) {
      if (progress) progress(phase + " " + result.group.name, done, total);
    });
  };
  if (!result.group.warm_up.empty()) result.cold = run("warm-up", result.group.warm_up);
  result.counters_before = read_server_state(options.target).counters;
  result.warm = run("measured", result.group.measured);
  result.counters_after = read_server_state(options.target).counters;
  result.cold_metrics =
      serve_metrics(result.cold.answers, result.group.warm_up, result.cold.duration_s, options.percentiles);
  result.metrics =
      serve_metrics(result.warm.answers, result.group.measured, result.warm.duration_s, options.percentiles);
  return result;
}

// All groups as one round: each begins where the one before it ended.
ServeMetrics total_metrics(const std::vector<GroupResult>& groups, std::span<const double> percentiles) {
  std::vector<AnswerRecord> answers;
  std::vector<BenchPrompt> prompts;
  double duration_s = 0;
  for (const GroupResult& group : groups) {
    for (AnswerRecord answer : group.warm.answers) {
      answer.start_s += duration_s;
      answers.push_back(std::move(answer));
    }
    for (const BenchPrompt& prompt : group.group.measured)
      prompts.push_back({.text = {}, .num_tokens = prompt.num_tokens});
    duration_s += group.warm.duration_s;
  }
  return serve_metrics(answers, prompts, duration_s, percentiles);
}

void add_prefix_hits(ServeResult& result) {
  int64_t num_requests = 0, num_tokens = 0, num_answers = 0;
  for (const GroupResult& group : result.groups)
    for (const AnswerRecord& answer : group.warm.answers) {
      ++num_answers;
      const int64_t cached = answer.cached_tokens.value_or(0);
      num_requests += cached > 0 ? 1 : 0;
      num_tokens += cached;
    }
  if (num_requests > 0)
    result.voids.push_back(
        fmt::format("prefix cache: {} of {} requests took {} prompt tokens from it, so no figure "
                    "of prefill counts (TTFT, E2EL, throughput)",
                    num_requests, num_answers, num_tokens));
}

void add_notes(const ServeBenchOptions& options, const TokenCounter& counter, ServeResult& result) {
  if (!counter)
    result.notes.push_back(
        "the server has no /tokenize and no --tokenizer was given: prompt lengths are about what was asked "
        "for; "
        "the counts are those of the server's usage");
  else if (!counter.with_template)
    result.notes.push_back(
        "/tokenize knows no messages: the chat template's tokens come on top of the lengths");
  int64_t num_without_usage = 0, num_other_length = 0, num_short = 0, num_failed_cold = 0;
  for (const GroupResult& group : result.groups) {
    num_failed_cold += group.cold_metrics.failed;
    for (size_t i = 0; i < group.warm.answers.size(); ++i) {
      const AnswerRecord& answer = group.warm.answers[i];
      const BenchPrompt& prompt = group.group.measured[i];
      if (!answer.ok()) continue;
      if (!answer.completion_tokens) ++num_without_usage;
      if (answer.prompt_tokens && prompt.num_tokens > 0 && *answer.prompt_tokens != prompt.num_tokens)
        ++num_other_length;
      if (options.target.ignore_eos && answer.num_output_tokens() != prompt.max_output_tokens) ++num_short;
    }
  }
  if (num_without_usage > 0)
    result.notes.push_back(
        fmt::format("{} answers came without usage: a chunk was taken for a token", num_without_usage));
  if (num_other_length > 0)
    result.notes.push_back(fmt::format(
        "{} prompts have another length by the server's usage than was counted: the counts are the usage's",
        num_other_length));
  if (num_short > 0)
    result.notes.push_back(
        fmt::format("{} answers have another length than asked for, though --ignore-eos was set", num_short));
  if (num_failed_cold > 0) result.notes.push_back(fmt::format("{} warm-up requests failed", num_failed_cold));
  if (result.measured_cold())
    result.notes.push_back("measured cold: there was no warm-up round (--num-warmups 0)");
}

}  // namespace

bool ServeResult::measured_cold() const {
  for (const GroupResult& group : groups)
    if (group.cold.answers.empty()) return true;
  return false;
}

double ServeResult::score() const {
  double sum = 0;
  for (const GroupResult& group : groups) sum += group.group.weight * group.metrics.output_throughput;
  return sum;
}

ServeResult run_serve_bench(ServeBenchOptions& options, const ServeProgress& progress) {
  for (const std::string& name : options.percentile_metrics)
    if (name != "ttfr" && name != "ttft" && name != "tpot" && name != "itl" && name != "e2el")
      fail(ErrorKind::kInvalid, "--percentile-metrics: got '{}', need ttfr, ttft, tpot, itl or e2el", name);
  if (options.target.model.empty()) options.target.model = first_model(options.target);
  const TokenCounter counter = choose_counter(options);
  ServeResult result{.date = date_now(), .counted = counter.source};
  result.server = read_server_state(options.target).lasting;
  std::vector<PromptGroup> groups = make_dataset(options.dataset, counter);
  for (PromptGroup& group : groups) result.groups.push_back(run_group(options, std::move(group), progress));
  result.total = total_metrics(result.groups, options.percentiles);
  add_prefix_hits(result);
  add_notes(options, counter, result);
  return result;
}

}  // namespace longspan::measure
