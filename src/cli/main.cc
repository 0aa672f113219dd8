#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "core/error.h"

namespace {

constexpr int kUsage = 2;
constexpr int kEnvironment = 3;

int run(int argc, char** argv) {
  CLI::App app{
      "Longspan: serves hybrid long-context language models. Every command explains itself with --help.",
      "longspan"};
  app.set_version_flag("--version", LONGSPAN_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  int exit_code = 0;
  longspan::cli::add_serve(app, exit_code);
  longspan::cli::add_run(app, exit_code);
  longspan::cli::add_ask(app, exit_code);
  longspan::cli::add_plan(app, exit_code);
  longspan::cli::add_inspect(app, exit_code);
  longspan::cli::add_tokenize(app, exit_code);
  longspan::cli::add_score(app, exit_code);
  longspan::cli::add_quantize(app, exit_code);
  longspan::cli::add_doctor(app, exit_code);
  longspan::cli::add_verify(app, exit_code);
  longspan::cli::add_bench(app, exit_code);
  longspan::cli::add_profile(app, exit_code);
  const auto is_named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_named).empty())
    longspan::fail(longspan::ErrorKind::kInvalid, "unknown command '{}': longspan --help lists them",
                   argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kUsage;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const longspan::Error& error) {
    std::fprintf(stderr, "longspan: %s\n", error.what());
    return longspan::exit_code(error.kind);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "longspan: %s\n", error.what());
    return kEnvironment;
  }
}
