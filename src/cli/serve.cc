// `longspan serve`: a model behind OpenAI's HTTP API, until a signal comes.
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "cli/commands.h"
#include "cli/load.h"
#include "core/log.h"
#include "measure/profile_session.h"
#include "measure/program.h"
#include "server/chat_prompt.h"
#include "text/chat_template.h"

namespace longspan::cli {
namespace {

struct ServeFlags {
  SettingFlags settings;
  bool print_config = false;
};

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// The tokens of cache.pinned_prompt; none without one.
std::vector<int32_t> pinned_prompt(const io::Config& config, const text::Tokenizer& tokenizer,
                                   const text::ChatTemplate& chat_template) {
  const std::string& path = config.string("cache.pinned_prompt");
  if (path.empty()) return {};
  if (!config.boolean("cache.enable_prefix_caching"))
    fail(ErrorKind::kInvalid, "cache.pinned_prompt: got '{}', need cache.enable_prefix_caching", path);
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || text.empty())
    fail(ErrorKind::kNotFound, "cache.pinned_prompt: '{}' cannot be read, or is empty", path);
  return server::system_prefix(server::ChatPrompter(tokenizer, chat_template), text);
}

void read_and_pin(engine::Engine& engine, const std::vector<int32_t>& prompt) {
  engine::Response response = engine.submit({.prompt = prompt, .max_new_tokens = 1, .pin_prefix = true});
  engine::ResponseUpdate update;
  while (!update.done) update = response.wait(std::chrono::milliseconds(1000));
  if (update.reason == engine::FinishReason::kError)
    fail(ErrorKind::kEnvironment, "cache.pinned_prompt: {}", update.error);
}

measure::ProfileOptions profile_options(const io::Config& config, const server::ServerOptions& to_server) {
  return {.directory = config.string("server.profile_dir"),
          .model_name = to_server.model_names.front(),
          .threads = static_cast<int>(config.integer("engine.threads")),
          .patience = std::chrono::seconds(static_cast<int64_t>(to_server.stall_seconds))};
}

int run(const ServeFlags& flags) {
  const io::Config config = flags.settings.settings();
  if (flags.print_config) {
    for (const std::string& line : config.lines(/*only_changed=*/false)) std::printf("%s\n", line.c_str());
    return 0;
  }
  server::ServerOptions to_server = server_options(config);
  // At the start, while the file is surely the one that was started.
  const measure::Program program = measure::read_program("/");
  to_server.build = {.path = program.path, .hash = program.hash};
  engine::EngineOptions to_engine = engine_options(config, engine::Purpose::kRun);
  // Blocked in every thread that is made from here on; taken by sigwait below.
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const text::Tokenizer tokenizer = load_tokenizer(config);
  const text::ChatTemplate chat_template = text::ChatTemplate::load(config.string("model.model_path"));
  to_engine.tokenizer_eos_ids = eos_ids(tokenizer);
  const std::vector<int32_t> pinned = pinned_prompt(config, tokenizer, chat_template);
  to_engine.max_pinned_tokens = std::ssize(pinned);
  const auto engine = load_engine(config, to_engine, StartLines::kPrint);
  if (!pinned.empty()) read_and_pin(*engine, pinned);
  // Before the server, so that it ends after it: what a profile holds when a signal comes is kept.
  measure::ProfileSession profiles(*engine, profile_options(config, to_server));
  if (!config.string("server.profile_dir").empty()) to_server.profiler = &profiles;
  server::Server server(*engine, tokenizer, chat_template, to_server);
  server.start();
  log(LogLevel::kInfo, "listening on http://{}:{}", to_server.host, server.port());

  int signal = 0;
  sigwait(&signals, &signal);
  log(LogLevel::kInfo, "shutting down: running requests get {} s, a second signal ends at once",
      to_server.shutdown_timeout_seconds);
  std::signal(SIGINT, [](int) { _exit(1); });
  std::signal(SIGTERM, [](int) { _exit(1); });
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  if (!server.drain()) log(LogLevel::kWarn, "some requests did not finish in time");
  server.stop();
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP, in OpenAI's dialects");
  flags->settings.add_to(*command, FlagKind::kServer);
  command->add_flag("--print-config", flags->print_config,
                    "Print every setting with its value and source, and end");
  command->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace longspan::cli
