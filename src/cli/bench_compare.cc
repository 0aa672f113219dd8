// `longspan bench compare`: two saved results, or A, B and A again, and what may be said of them.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "measure/compare.h"

namespace longspan::cli {
namespace {

struct BenchCompareFlags {
  std::string a, b, a_again;
  bool json = false;
};

int bench_compare(const BenchCompareFlags& flags) {
  const measure::ResultFile a = measure::read_result(flags.a), b = measure::read_result(flags.b);
  std::optional<measure::ResultFile> again;
  if (!flags.a_again.empty()) again = measure::read_result(flags.a_again);
  const measure::Comparison comparison = measure::compare_results(a, b, again ? &*again : nullptr);
  if (flags.json)
    std::printf("%s\n", to_json(comparison).dump(2).c_str());
  else
    std::printf("%s", to_text(comparison).c_str());
  return comparison.ok() ? 0 : kCheckFailed;
}

}  // namespace

void add_bench_compare(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<BenchCompareFlags>();
  CLI::App* compare =
      bench.add_subcommand("compare", "Two saved results side by side: ratios, outputs, paths, environments");
  compare->add_option("A", flags->a, "Result of the baseline")->required();
  compare->add_option("B", flags->b, "Result of the thing under test")->required();
  compare->add_option("A_AGAIN", flags->a_again, "The baseline measured once more: tells drift from change");
  compare->add_flag("--json", flags->json, "Print JSON");
  compare->footer(
      "Exit code 1 when the comparison is void or the outputs differ. Results of vLLM's serving benchmark "
      "are read too.");
  compare->callback([flags, &exit_code] { exit_code = bench_compare(*flags); });
}

}  // namespace longspan::cli
