// `longspan bench input-prep`: preparing the inputs of a decode step, after a check that both ways agree.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/settings.h"
#include "core/error.h"
#include "core/units.h"
#include "measure/input_prep.h"

namespace longspan::cli {
namespace {

struct InputPrepFlags {
  measure::InputPrepOptions options;
  std::string layout = "split";
  std::string device = "cpu";
  bool json = false;
};

void print(const measure::InputPrepOptions& options, const measure::InputPrepResult& result) {
  std::printf("input preparation of one sequence that decodes, from position %s on: %d groups, %s\n",
              format_count(static_cast<size_t>(options.position)).c_str(), result.num_groups,
              result.device.empty() ? "host work only" : ("until they are on " + result.device).c_str());
  std::printf("equality    %lld steps, every integer the same\n",
              static_cast<long long>(result.num_compared));
  std::printf("general     %8.1f ns a step (A), %.1f ns (A again: drift %+.1f %%)\n",
              result.general_before_ns, result.general_after_ns, result.drift_percent());
  std::printf("steady      %8.1f ns a step (B), dispatched %s times\n", result.steady_ns,
              format_count(static_cast<size_t>(result.num_dispatched)).c_str());
  if (!result.device.empty())
    std::printf("device      wrote them %s times; %s copies of a table that had grown\n",
                format_count(static_cast<size_t>(result.num_advanced)).c_str(),
                format_count(static_cast<size_t>(result.num_table_uploads)).c_str());
  std::printf("saved       %8.1f ns a step, %.2f times as fast (against the faster A)\n", result.saved_ns(),
              result.speed_up());
}

int input_prep(InputPrepFlags flags) {
  flags.options.layout = cache::layout_from_name(flags.layout);
  flags.options.device_index = device_index(flags.device, "--device");
  const measure::InputPrepResult result = measure::measure_input_prep(flags.options);
  if (flags.json) {
    std::printf("%s\n",
                nlohmann::ordered_json{{"equal", result.difference.empty()},
                                       {"difference", result.difference},
                                       {"num_compared", result.num_compared},
                                       {"position", flags.options.position},
                                       {"num_groups", result.num_groups},
                                       {"general_before_ns", result.general_before_ns},
                                       {"steady_ns", result.steady_ns},
                                       {"general_after_ns", result.general_after_ns},
                                       {"device", result.device.empty() ? "cpu" : result.device},
                                       {"num_dispatched", result.num_dispatched},
                                       {"num_advanced", result.num_advanced},
                                       {"num_table_uploads", result.num_table_uploads},
                                       {"speed_up", result.difference.empty() ? result.speed_up() : 0}}
                    .dump(2)
                    .c_str());
  } else if (result.difference.empty()) {
    print(flags.options, result);
  } else {
    std::printf("the two ways differ after %lld equal steps: %s\n",
                static_cast<long long>(result.num_compared), result.difference.c_str());
  }
  return result.difference.empty() ? 0 : kCheckFailed;
}

}  // namespace

void add_bench_input_prep(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<InputPrepFlags>();
  CLI::App* prep = bench.add_subcommand(
      "input-prep", "Preparing the inputs of a decode step: general against steady, A/B/A");
  prep->add_option("--position", flags->options.position, "Of the first decode step, tokens")
      ->capture_default_str();
  prep->add_option("--steps", flags->options.num_steps, "Decode steps of a round")->capture_default_str();
  prep->add_option("--warm-up", flags->options.num_warm_up, "Steps before each round")->capture_default_str();
  prep->add_option("--rounds", flags->options.num_rounds, "The median of them counts")->capture_default_str();
  prep->add_option("--layout", flags->layout, "split: two groups; unified: four")->capture_default_str();
  prep->add_option("--device", flags->device,
                   "cpu: host work alone; or this build's card or emulator: until the arrays are there")
      ->capture_default_str();
  prep->add_flag("--json", flags->json, "Print JSON");
  prep->callback([flags, &exit_code] { exit_code = input_prep(*flags); });
}

}  // namespace longspan::cli
