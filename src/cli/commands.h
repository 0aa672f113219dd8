// The commands of the longspan program, one file each. A command registers its flags and, when chosen, sets
// exit_code: 0 done, 1 the check failed, 2 bad usage or input, 3 environment (Error is mapped in main.cc).
#pragma once

namespace CLI {
class App;
}

namespace longspan::cli {

void add_serve(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_ask(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_profile(CLI::App& app, int& exit_code);
void add_score(CLI::App& app, int& exit_code);
void add_quantize(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);

}  // namespace longspan::cli
