// `longspan bench`: figures, each after a check that what is measured is right. The subcommands are files of
// their own.
#include "cli/bench.h"

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace longspan::cli {

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Figures, each after a check that what is measured is right");
  bench->require_subcommand(1);
  add_bench_input_prep(*bench, exit_code);
  add_bench_peak(*bench, exit_code);
  add_bench_kernel(*bench, exit_code);
  add_bench_context(*bench, exit_code);
  add_bench_serve(*bench, exit_code);
  add_bench_compare(*bench, exit_code);
  add_bench_report(*bench, exit_code);
}

}  // namespace longspan::cli
