// `longspan bench serve`: a benchmark of any OpenAI-compatible server, end to end. Flags and figures are
// named as in vLLM's serving benchmark.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/bench.h"
#include "cli/progress.h"
#include "core/error.h"
#include "core/units.h"
#include "measure/environment.h"
#include "measure/serve_bench.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxFailuresShown = 20;

struct BenchServeFlags {
  measure::ServeBenchOptions options;
  std::string base_url = "http://127.0.0.1:8000";
  std::string backend;
  std::string endpoint;
  std::string dataset_name = "text";
  std::string request_rate = "inf";
  std::string extra_body;
  std::string percentiles = "99";
  std::string percentile_metrics;
  int64_t num_warm_up = -1;  // as many as are measured
  double timeout_s = 1800;
  bool save = false;
  std::string result_dir = ".";
  std::string result_filename;
  bool json = false;
  bool as_in_vllm = false;  // flags that are taken and change nothing: it is always so here
};

// ---- flags ----

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

double number_of(const std::string& text, const char* flag, double above, double max) {
  size_t used = 0;
  double value = std::nan("");
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || text.empty() || !(value > above) || value > max)
    fail(ErrorKind::kInvalid, "{}: got '{}', need a number above {}", flag, text, above);
  return value;
}

void set_endpoint(BenchServeFlags& flags) {
  measure::LoadTarget& target = flags.options.target;
  if (!flags.backend.empty() && flags.backend != "openai" && flags.backend != "vllm" &&
      flags.backend != "openai-chat")
    fail(ErrorKind::kInvalid, "--backend: got '{}', need openai, openai-chat or vllm", flags.backend);
  if (flags.endpoint.empty())
    flags.endpoint =
        flags.backend.empty() || flags.backend == "openai-chat" ? "/v1/chat/completions" : "/v1/completions";
  constexpr std::string_view kCompletions = "completions", kChat = "chat/completions";
  const auto ends_in = [&](std::string_view end) {
    return flags.endpoint.size() >= end.size() &&
           flags.endpoint.compare(flags.endpoint.size() - end.size(), end.size(), end) == 0;
  };
  if (!ends_in(kCompletions) || flags.endpoint.front() != '/')
    fail(ErrorKind::kInvalid, "--endpoint: got '{}', need /v1/chat/completions or /v1/completions",
         flags.endpoint);
  target.path = flags.endpoint;
  target.endpoint = ends_in(kChat) ? measure::BenchEndpoint::kChat : measure::BenchEndpoint::kCompletions;
}

void set_bench_options(BenchServeFlags& flags) {
  measure::ServeBenchOptions& options = flags.options;
  options.target.url = measure::bench_url(flags.base_url);
  set_endpoint(flags);
  if (!(flags.timeout_s > 0 && flags.timeout_s < 1e6))
    fail(ErrorKind::kInvalid, "--timeout: got {}, need seconds above 0", flags.timeout_s);
  options.target.timeouts.read = std::chrono::milliseconds(std::llround(flags.timeout_s * 1000));
  if (!flags.extra_body.empty()) {
    options.target.extra_body = Json::parse(flags.extra_body, nullptr, /*allow_exceptions=*/false);
    if (!options.target.extra_body.is_object())
      fail(ErrorKind::kInvalid, "--extra-body: got '{}', need a JSON object", flags.extra_body);
  }
  if (flags.request_rate != "inf")
    options.load.request_rate = number_of(flags.request_rate, "--request-rate", 0, 1e9);
  options.load.seed = options.dataset.seed;
  options.dataset.kind = measure::dataset_from_name(flags.dataset_name);
  options.dataset.num_warm_up = flags.num_warm_up < 0 ? options.dataset.num_prompts : flags.num_warm_up;
  options.percentiles.clear();
  for (const std::string& part : split_list(flags.percentiles))
    options.percentiles.push_back(number_of(part, "--metric-percentiles", 0, 100));
  if (!flags.percentile_metrics.empty()) options.percentile_metrics = split_list(flags.percentile_metrics);
}

// ---- what people read ----

void print_spread(const char* title, const std::string& name, const measure::MetricSpread& spread) {
  std::printf("%s\n", fmt::format("{:-^62}", fmt::format(" {} ", title)).c_str());
  const auto line = [&](const std::string& what, double value) {
    std::printf("%-46s%16.2f\n", (what + " " + name + " (ms):").c_str(), value);
  };
  line("Mean", spread.mean);
  line("Median", spread.median);
  for (const auto& [percent, value] : spread.percentiles) {
    std::string which = measure::percentile_name(percent);
    which[0] = 'P';
    line(which, value);
  }
}

void print_total(const measure::ServeBenchOptions& options, const measure::ServeResult& result) {
  const measure::ServeMetrics& total = result.total;
  const auto count = [](const char* what, int64_t value) {
    std::printf("%-46s%16s\n", what, format_count(static_cast<size_t>(value)).c_str());
  };
  const auto number = [](const char* what, double value) { std::printf("%-46s%16.2f\n", what, value); };
  std::printf("%s\n", fmt::format("{:=^62}", " Serving Benchmark Result ").c_str());
  count("Successful requests:", total.completed);
  count("Failed requests:", total.failed);
  if (options.load.max_concurrency > 0) count("Maximum request concurrency:", options.load.max_concurrency);
  if (!std::isinf(options.load.request_rate))
    number("Request rate configured (RPS):", options.load.request_rate);
  number("Benchmark duration (s):", total.duration_s);
  count("Total input tokens:", total.total_input_tokens);
  count("Total generated tokens:", total.total_output_tokens);
  number("Request throughput (req/s):", total.request_throughput);
  number("Output token throughput (tok/s):", total.output_throughput);
  number("Peak output token throughput (tok/s):", total.max_output_tokens_per_s);
  count("Peak concurrent requests:", total.max_concurrent_requests);
  number("Total token throughput (tok/s):", total.total_token_throughput);
  number("Input tokens over time to first token (tok/s):", total.prefill_throughput);
  const std::pair<const char*, const char*> titles[] = {{"ttfr", "Time to First Response Byte"},
                                                        {"ttft", "Time to First Token"},
                                                        {"tpot", "Time per Output Token (excl. 1st token)"},
                                                        {"itl", "Inter-token Latency"},
                                                        {"e2el", "End-to-end Latency"}};
  for (const auto& [name, spread] : measure::spreads_of(total)) {
    const std::vector<std::string>& only = options.percentile_metrics;
    if (std::find(only.begin(), only.end(), name) == only.end()) continue;
    std::string upper = name;
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    for (const auto& [key, title] : titles)
      if (name == key) print_spread(title, upper, *spread);
  }
  std::printf("%s\n", std::string(62, '=').c_str());
}

// Cold and measured rounds side by side: what the warm-up was for.
void print_groups(const measure::ServeBenchOptions& options, const measure::ServeResult& result) {
  std::printf("%-9s %6s %-8s %9s %9s %11s %11s %11s\n", "prompts", "weight", "round", "completed", "failed",
              "output t/s", "TTFT ms", "TPOT ms");
  for (const measure::GroupResult& group : result.groups) {
    const auto row = [&](const char* round, const measure::ServeMetrics& metrics) {
      std::printf("%-9s %6.2f %-8s %9lld %9lld %11.2f %11.2f %11.2f\n", group.group.name.c_str(),
                  group.group.weight, round, static_cast<long long>(metrics.completed),
                  static_cast<long long>(metrics.failed), metrics.output_throughput, metrics.ttft.mean,
                  metrics.tpot.mean);
    };
    if (!group.cold.answers.empty()) row("warm-up", group.cold_metrics);
    row(group.cold.answers.empty() ? "COLD" : "measured", group.metrics);
  }
  if (options.dataset.kind == measure::DatasetKind::kBuckets)
    std::printf("score %.3f: the sum of weight * output tokens a second over the measured rounds\n",
                result.score());
}

void print_failures(const measure::ServeResult& result) {
  size_t shown = 0, number = 0;
  for (const measure::GroupResult& group : result.groups)
    for (const measure::AnswerRecord& answer : group.warm.answers) {
      ++number;
      if (answer.ok() || ++shown > kMaxFailuresShown) continue;
      std::printf("FAILED request %zu (%s): %s\n", number - 1, group.group.name.c_str(),
                  answer.error.c_str());
    }
  if (shown > kMaxFailuresShown) std::printf("... and %zu more\n", shown - kMaxFailuresShown);
}

void print_counters(const Json& counters) {
  if (!counters.contains("dispatch")) return;
  const Json hits = counters["dispatch"].value("hits", Json::object());
  const Json misses = counters["dispatch"].value("vendor_prefill_misses", Json::object());
  std::string line;
  for (const auto& [path, count] : hits.items()) line += fmt::format("  {} {}", path, count.dump());
  for (const auto& [condition, count] : misses.items())
    if (count != 0) line += fmt::format("  (vendor_prefill missed by {}: {})", condition, count.dump());
  std::printf("paths taken while measured:%s\n", line.c_str());
}

// ---- the result's file ----

std::string save_result(const BenchServeFlags& flags, const measure::ServeResult& result, const Json& json) {
  std::string name = flags.result_filename;
  if (name.empty()) {
    const std::string& model = flags.options.target.model;
    const std::string concurrency = flags.options.load.max_concurrency > 0
                                        ? fmt::format("-concurrency{}", flags.options.load.max_concurrency)
                                        : "";
    name = fmt::format("{}-{}qps{}-{}-{}.json",
                       flags.options.label.empty() ? json["backend"].get<std::string>() : flags.options.label,
                       flags.request_rate, concurrency, model.substr(model.rfind('/') + 1), result.date);
  }
  const std::filesystem::path path = std::filesystem::path(flags.result_dir) / name;
  std::error_code ignored;  // the write below says what is wrong
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::ofstream file(path, std::ios::binary);
  file << json.dump(1) << "\n";
  if (!file.flush()) fail(ErrorKind::kEnvironment, "cannot write {}", path.string());
  return path.string();
}

measure::ServeProgress show_progress() {
  struct Bar {
    std::string phase;
    std::function<void(size_t, size_t)> update;
  };
  return [bar = std::make_shared<Bar>()](const std::string& phase, size_t done, size_t total) {
    if (bar->phase != phase) *bar = {.phase = phase, .update = progress(phase, ProgressUnit::kItems)};
    bar->update(done, total);
  };
}

int bench_serve(BenchServeFlags flags) {
  set_bench_options(flags);
  const Json environment = to_json(measure::read_environment(measure::AskDevices::kNo));
  const measure::ServeResult result = measure::run_serve_bench(flags.options, show_progress());
  const Json json = to_json(flags.options, result, environment);
  const bool saves = flags.save || !flags.result_filename.empty();
  const std::string path = saves ? save_result(flags, result, json) : "";
  if (flags.json) {
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    print_total(flags.options, result);
    print_groups(flags.options, result);
    print_counters(json["counters"]);
    print_failures(result);
    for (const std::string& note : result.notes) std::printf("note: %s\n", note.c_str());
    if (!path.empty()) std::printf("saved to %s\n", path.c_str());
  }
  std::fflush(stdout);  // what follows must stand below it
  for (const std::string& why : result.voids) std::fprintf(stderr, "\nVOID: %s\n", why.c_str());
  return result.total.failed > 0 ? kCheckFailed : 0;
}

void add_workload_flags(CLI::App& serve, BenchServeFlags& flags) {
  measure::DatasetOptions& dataset = flags.options.dataset;
  serve
      .add_option(
          "--dataset-name", flags.dataset_name,
          "text (or random): built-in prose of an exact length; custom: JSONL; buckets: 4K-8K, 8K-16K, "
          "16K-32K with weights 0.2, 0.5, 0.3, of prose or sorted out of --dataset-path")
      ->capture_default_str();
  serve.add_option(
      "--dataset-path", dataset.path,
      "JSONL: a \"prompt\" a line and, if it likes, \"output_tokens\"; the first N, never shuffled");
  serve.add_option("--num-prompts", dataset.num_prompts, "Measured requests, of each bucket")
      ->capture_default_str();
  serve.add_option(
      "--num-warmups", flags.num_warm_up,
      "Requests of the warm-up round: same lengths, other prompts; default: as many as are measured");
  serve
      .add_option("--input-len,--random-input-len", dataset.input_tokens,
                  "Tokens of a text prompt, chat template included")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  serve
      .add_option("--output-len,--random-output-len,--custom-output-len", dataset.output_tokens,
                  "Tokens of an answer at most; default: as the JSONL says, else 128, for buckets 1024")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  serve.add_flag("--ignore-eos", flags.options.target.ignore_eos,
                 "Answers have exactly --output-len tokens: outputs of the same length compare");
  serve.add_option("--temperature", flags.options.target.temperature, "0: greedy")->capture_default_str();
  serve.add_option("--seed", dataset.seed, "Of texts and arrivals")->capture_default_str();
  serve
      .add_option("--max-concurrency", flags.options.load.max_concurrency,
                  "Requests at once at most; 0: no limit")
      ->check(CLI::Range(0, measure::kMaxStreams))
      ->capture_default_str();
  serve.add_option("--request-rate", flags.request_rate, "Requests a second, Poisson; inf: all at once")
      ->capture_default_str();
}

void add_result_flags(CLI::App& serve, BenchServeFlags& flags) {
  serve.add_option("--percentile-metrics", flags.percentile_metrics,
                   "Metrics to tell, of ttfr,ttft,tpot,itl,e2el; default: all");
  serve.add_option("--metric-percentiles", flags.percentiles, "50,90,99")->capture_default_str();
  serve.add_flag("--save-result", flags.save, "Save the result as JSON, every request in it");
  serve.add_option("--result-dir", flags.result_dir, "Where to")->capture_default_str();
  serve.add_option("--result-filename", flags.result_filename, "Its name; implies --save-result");
  serve.add_option("--label", flags.options.label,
                   "Name of this run: in front of the file's name, in reports");
  serve.add_flag("--json", flags.json, "Print the result as JSON");
  for (const char* name : {"--save-detailed", "--disable-shuffle"})
    serve.add_flag(name, flags.as_in_vllm, "Taken as in vLLM's benchmark; always so here")->group("");
}

}  // namespace

void add_bench_serve(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* serve = bench.add_subcommand(
      "serve", "A running OpenAI-compatible server, end to end: throughput, TTFT, TPOT, ITL, E2EL");
  serve->add_option("--base-url", flags->base_url, "With or without /v1")->capture_default_str();
  serve->add_option("--model", flags->options.target.model, "Model name; default: the server's first");
  serve->add_option("--api-key", flags->options.target.api_key, "Key of the server")
      ->envname("OPENAI_API_KEY");
  serve->add_option("--backend", flags->backend, "openai-chat (chat), openai or vllm (completions)");
  serve->add_option("--endpoint", flags->endpoint, "/v1/chat/completions or /v1/completions");
  serve->add_option("--tokenizer", flags->options.tokenizer_dir,
                    "Model directory to count tokens with, for a server without /tokenize");
  serve->add_option("--extra-body", flags->extra_body, "JSON object put into every request");
  serve->add_option("--timeout", flags->timeout_s, "Longest silence of a stream, seconds")
      ->capture_default_str();
  add_workload_flags(*serve, *flags);
  add_result_flags(*serve, *flags);
  serve->footer(
      "Exit code 1 when a request failed. Figures of prefill are void when a prompt was found in a "
      "prefix cache: the result says so.");
  serve->callback([flags, &exit_code] { exit_code = bench_serve(*flags); });
}

}  // namespace longspan::cli
