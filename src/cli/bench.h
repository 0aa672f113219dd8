// The subcommands of `longspan bench`, one file a family. Each registers itself like a command (commands.h).
#pragma once

namespace CLI {
class App;
}

namespace longspan::cli {

constexpr int kCheckFailed = 1;  // exit code: what was measured is wrong or void

void add_bench_input_prep(CLI::App& bench, int& exit_code);
void add_bench_peak(CLI::App& bench, int& exit_code);
void add_bench_kernel(CLI::App& bench, int& exit_code);
void add_bench_context(CLI::App& bench, int& exit_code);
void add_bench_serve(CLI::App& bench, int& exit_code);
void add_bench_compare(CLI::App& bench, int& exit_code);
void add_bench_report(CLI::App& bench, int& exit_code);

}  // namespace longspan::cli
