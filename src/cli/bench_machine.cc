// `longspan bench peak|kernel|context`: what the machine can do, its operations alone, and a model's speed
// against context. No server takes part.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <charconv>
#include <filesystem>
#include <fstream>

#include "cli/bench.h"
#include "cli/settings.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "core/units.h"
#include "measure/context_bench.h"
#include "measure/kernel_bench.h"
#include "measure/peak_cache.h"
#include "ops/cpu/backend.h"
#include "ops/device/backend.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

void save_json(const std::string& path, const Json& json) {
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.close();
  if (!file) fail(ErrorKind::kEnvironment, "{}: cannot be written", path);
}

// --device: the card of this build; alone its first one, with a value as elsewhere: "cuda", "cuda:1", "cpu".
struct DeviceFlag {
  CLI::Option* given = nullptr;
  std::string name;

  void add_to(CLI::App& command) {
    given =
        command.add_option("--device", name, "Not on the processors: cuda, hip, cuda:1 ...; alone the first")
            ->expected(0, 1);
  }
  // Null: the processors.
  std::unique_ptr<ops::Backend> backend() const {
    if (!*given) return nullptr;
    const std::optional<int> index =
        device_index(name.empty() ? ops::device::vendor_name() : name, "--device");
    return index ? ops::device::make_backend(*index) : nullptr;
  }
};

// ---- peak ----

struct PeakFlags {
  DeviceFlag device;
  int threads = 0;
  double seconds = 0.5;
  bool refresh = false;
  bool json = false;
};

void print_peaks(const measure::Peaks& peaks, bool cached) {
  const bool device = peaks.of.on_device();
  std::printf("%s%s%s\n", peaks.of.machine.c_str(),
              device ? "" : fmt::format(", {} threads", peaks.of.threads).c_str(),
              cached ? " (measured before; --refresh measures again)" : "");
  std::printf("read        %8.1f GB/s\ncopy        %8.1f GB/s, read and written bytes together\n",
              peaks.read_gbytes, peaks.copy_gbytes);
  const char* const all = device ? "" : ", all threads at once";
  if (peaks.bf16_gflops > 0)
    std::printf("bf16        %8.3f TFLOP/s%s\n", peaks.bf16_gflops / 1e3, all);
  else
    std::printf("bf16        no tiles on this processor: products are computed in fp32\n");
  if (peaks.fp16_gflops > 0) std::printf("fp16        %8.3f TFLOP/s\n", peaks.fp16_gflops / 1e3);
  std::printf("fp32        %8.3f TFLOP/s%s\n", peaks.fp32_gflops / 1e3, all);
}

measure::Peaks measure_peaks_of(const PeakFlags& flags, ops::Backend* device, int threads) {
  return device != nullptr ? measure::measure_device_peaks(*device, {.seconds = flags.seconds})
                           : measure::measure_peaks(threads, flags.seconds);
}

int bench_peak(const PeakFlags& flags) {
  const int threads = flags.threads > 0 ? flags.threads : usable_cpus();
  const std::unique_ptr<ops::Backend> device = flags.device.backend();
  const measure::PeakKey key =
      device ? measure::PeakKey{.machine = device->name()} : measure::this_machine(threads);
  std::optional<measure::Peaks> peaks = flags.refresh ? std::nullopt : measure::cached_peaks(key);
  const bool cached = peaks.has_value();
  std::string kept;
  if (!cached) {
    peaks = measure_peaks_of(flags, device.get(), threads);
    if (peaks->quiet()) kept = measure::store_peaks(*peaks).string();
  }
  if (flags.json) {
    Json json = measure::to_json(*peaks);
    json["cached"] = cached;
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  print_peaks(*peaks, cached);
  if (!kept.empty()) std::printf("kept in %s\n", kept.c_str());
  if (!peaks->quiet())
    std::printf(
        "other programs took %.0f %% of the processors meanwhile: not kept, measure on a quiet machine\n",
        100 * (1 - peaks->processor_share));
  return 0;
}

// ---- kernel ----

struct KernelFlags {
  DeviceFlag device;
  measure::KernelBenchOptions options;
  std::string model;
  std::vector<std::string> products;
  std::string save;
  int threads = 0;
  bool json = false;
};

// "7168x1024"
measure::ProductShape product_of(const std::string& text) {
  measure::ProductShape shape;
  const char* const end = text.data() + text.size();
  const auto [cross, n_error] = std::from_chars(text.data(), end, shape.n);
  const bool crossed = n_error == std::errc() && cross != end && *cross == 'x';
  const auto [rest, k_error] = crossed ? std::from_chars(cross + 1, end, shape.k)
                                       : std::from_chars_result{end, std::errc::invalid_argument};
  if (k_error != std::errc() || rest != end || shape.n < 1 || shape.k < 1)
    fail(ErrorKind::kInvalid, "--shapes: got '{}', need N x K of a weight as 7168x1024", text);
  return shape;
}

int bench_kernel(KernelFlags flags) {
  for (const Index rows : flags.options.rows)
    if (rows < 1) fail(ErrorKind::kInvalid, "--rows: got {}, need at least 1", rows);
  if (!flags.model.empty())
    flags.options.shapes = measure::shapes_of(io::load_model_config(flags.model), flags.model);
  for (const std::string& text : flags.products) flags.options.products.push_back(product_of(text));
  const int threads = flags.threads > 0 ? flags.threads : usable_cpus();
  std::unique_ptr<ops::Backend> backend = flags.device.backend();
  const bool on_device = backend != nullptr;
  if (!on_device) backend = ops::cpu::make_backend({.num_threads = threads});
  ops::Ops ops(std::move(backend));
  const std::optional<measure::Peaks> peaks = measure::cached_peaks(
      on_device ? measure::PeakKey{.machine = ops.name()} : measure::this_machine(threads));
  const auto tell = [&](const std::string& line) {
    if (flags.json) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  tell(fmt::format("{}; shapes of {}", ops.name(), flags.options.shapes.source));
  if (!peaks)
    tell(fmt::format("no shares of the machine's limits: run `longspan bench peak{}` first",
                     on_device ? " --device" : ""));
  const measure::KernelResults results = measure::bench_kernels(ops, flags.options, peaks, tell);
  const Json json = measure::to_json(results);
  if (flags.json) std::printf("%s\n", json.dump(2).c_str());
  if (!flags.save.empty()) save_json(flags.save, json);
  const bool wrong = std::ranges::any_of(
      results.pairs, [](const measure::PairFigure& pair) { return pair.same_bits == std::optional(false); });
  return wrong ? kCheckFailed : 0;
}

// ---- context ----

struct ContextFlags {
  measure::ContextBenchOptions options;
  std::string model;
  std::string save;
  std::string plot;
  int threads = 0;
  bool layouts = false;
  bool json = false;
};

// A picture through gnuplot where it is installed, else its script for another machine.
void save_plot(const std::string& path, const measure::ContextResult& result) {
  const std::filesystem::path script = path + ".gnuplot";
  std::ofstream(script) << measure::growth_script(result, path);
  if (std::system(("gnuplot '" + script.string() + "' >/dev/null 2>&1").c_str()) == 0)
    std::filesystem::remove(script);
  else
    std::fprintf(stderr, "no gnuplot here: its script is in %s\n", script.c_str());
}

int bench_context(ContextFlags flags) {
  if (flags.plot.find('\'') != std::string::npos) fail(ErrorKind::kInvalid, "--plot: may not hold a quote");
  flags.options.engine.model = flags.model;
  flags.options.engine.num_threads = flags.threads;
  const auto tell = [&](const std::string& line) {
    if (flags.json) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  std::vector<measure::ContextResult> results;
  if (flags.layouts)
    results = measure::bench_layouts(flags.options, tell);
  else
    results.push_back(measure::bench_context(flags.options, tell));
  Json json = measure::to_json(results.front());
  if (flags.layouts) {
    json = Json::array();
    for (const measure::ContextResult& result : results) json.push_back(measure::to_json(result));
  } else {
    tell(measure::growth_text(results.front()));
    tell(measure::growth_plot(results.front()));
  }
  if (flags.json) std::printf("%s\n", json.dump(2).c_str());
  if (!flags.save.empty()) save_json(flags.save, json);
  if (!flags.plot.empty()) save_plot(flags.plot, results.front());
  return 0;
}

}  // namespace

void add_bench_peak(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<PeakFlags>();
  CLI::App* peak =
      bench.add_subcommand("peak", "What this machine or a device can do at most; kept for later runs");
  flags->device.add_to(*peak);
  peak->add_option("--threads", flags->threads, "0: all this process may use")->capture_default_str();
  peak->add_option("--seconds", flags->seconds, "For each figure")->capture_default_str();
  peak->add_flag("--refresh", flags->refresh, "Measure even where it was measured before");
  peak->add_flag("--json", flags->json, "Print JSON");
  peak->callback([flags, &exit_code] { exit_code = bench_peak(*flags); });
}

void add_bench_kernel(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<KernelFlags>();
  measure::KernelBenchOptions& options = flags->options;
  CLI::App* kernel =
      bench.add_subcommand("kernel", "Operations one by one on cold memory; ways that do the same, A/B/A");
  flags->device.add_to(*kernel);
  kernel->add_option("--op", options.op, "Only this one: matmul, attention, gated_delta, ...");
  kernel->add_option("--model", flags->model, "Model directory or config.json whose shapes to use");
  kernel->add_option("--shapes", flags->products, "Weights as NxK, commas between them")->delimiter(',');
  kernel->add_option("--rows", options.rows, "Rows of activations")->delimiter(',')->capture_default_str();
  kernel->add_option("--contexts", options.contexts, "KV lengths of attention")
      ->delimiter(',')
      ->capture_default_str();
  kernel->add_option("--min-runs", options.min_runs, "Runs that a median is made of")->capture_default_str();
  kernel->add_option("--limit-seconds", options.limit_seconds, "Of one case; then fewer runs must do")
      ->capture_default_str();
  kernel->add_option("--tries", options.max_tries, "Of an A/B/A whose A's differ")->capture_default_str();
  kernel->add_option("--threads", flags->threads, "0: all this process may use")->capture_default_str();
  kernel->add_option("--save", flags->save, "File for the JSON");
  kernel->add_flag("--json", flags->json, "Print JSON");
  kernel->callback([flags, &exit_code] { exit_code = bench_kernel(*flags); });
}

void add_bench_context(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<ContextFlags>();
  measure::ContextBenchOptions& options = flags->options;
  CLI::App* context =
      bench.add_subcommand("context", "Prefill and decode against context length, and how they grow");
  context->add_option("--model", flags->model, "Model directory")->required();
  context->add_option("--min", options.first, "Shortest context, tokens; then twice as long each")
      ->capture_default_str();
  context->add_option("--max", options.longest, "Longest context, tokens")->capture_default_str();
  context->add_option("--decoded", options.decoded, "Tokens that a decode figure is made of")
      ->capture_default_str();
  context->add_option("--rounds", options.rounds, "The median of them counts")->capture_default_str();
  context->add_option("--threads", flags->threads, "0: all this process may use")->capture_default_str();
  context->add_flag("--layouts", flags->layouts,
                    "Every cache layout and page size; all must answer the same");
  context->add_option("--save", flags->save, "File for the JSON");
  context->add_option("--plot", flags->plot, "File for a picture (PNG), by gnuplot");
  context->add_flag("--json", flags->json, "Print JSON");
  context->callback([flags, &exit_code] { exit_code = bench_context(*flags); });
}

}  // namespace longspan::cli
