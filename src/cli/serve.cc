// `longspan serve`: a model behind OpenAI's HTTP API, until a signal comes.
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <csignal>

#include "cli/commands.h"
#include "cli/model_flags.h"
#include "core/log.h"
#include "server/server.h"
#include "text/chat_template.h"

namespace longspan::cli {
namespace {

struct ServeFlags {
  ModelFlags model;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string api_key;
  std::vector<std::string> served_model_names;
  bool any_model_name = false;
  bool allow_no_key = false;
  int32_t max_num_seqs = 16;
  bool prefix_caching = false;
  double keepalive_seconds = 10;
  double shutdown_timeout_seconds = 30;
  std::string metrics_compat = "none";
  // Of other servers' command lines: accepted where they ask for what is so anyway.
  std::string kv_cache_dtype = "auto";
  int tensor_parallel_size = 1;
  bool ignored = false;
};

void add_server_flags(CLI::App& command, ServeFlags& flags) {
  command.add_option("--host", flags.host, "Address to listen on")->capture_default_str();
  command.add_option("--port", flags.port, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command.add_option("--api-key", flags.api_key, "What clients must send as 'Authorization: Bearer KEY'")
      ->envname("LONGSPAN_API_KEY");
  command.add_flag("--allow-no-key", flags.allow_no_key,
                   "Listen on an address that others can reach without --api-key");
  command.add_option("--served-model-name", flags.served_model_names,
                     "Names of the model for clients, the first for answers; default: the directory's name");
  command.add_flag("--any-model-name", flags.any_model_name,
                   "Take every model name in a request for the first");
  command.add_option("--max-num-seqs", flags.max_num_seqs, "Sequences in one step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags.prefix_caching,
                   "Reuse what earlier prompts left in the cache");
  command
      .add_option("--sse-keepalive-seconds", flags.keepalive_seconds,
                  "Silence after which a stream gets a comment; 0: never")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      .add_option("--shutdown-timeout-seconds", flags.shutdown_timeout_seconds,
                  "What running requests get to finish after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      .add_option("--metrics-compat", flags.metrics_compat,
                  "vllm: /metrics has vllm:* names too, for dashboards")
      ->check(CLI::IsMember({"none", "vllm"}))
      ->capture_default_str();
  command.add_option("--kv-cache-dtype", flags.kv_cache_dtype, "auto: as the model computes")
      ->capture_default_str();
  command.add_option("--tensor-parallel-size", flags.tensor_parallel_size, "1 on this device")
      ->capture_default_str();
  for (const char* name : {"--enable-chunked-prefill", "--enforce-eager", "--disable-log-requests"})
    command.add_flag(name, flags.ignored, "Accepted: it is so anyway");
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

void check(const ServeFlags& flags) {
  if (flags.kv_cache_dtype != "auto")
    fail(ErrorKind::kUnsupported, "--kv-cache-dtype: got '{}', need auto", flags.kv_cache_dtype);
  if (flags.tensor_parallel_size != 1)
    fail(ErrorKind::kUnsupported, "--tensor-parallel-size: got {}, need 1", flags.tensor_parallel_size);
  if (!is_loopback(flags.host) && flags.api_key.empty() && !flags.allow_no_key)
    fail(ErrorKind::kInvalid,
         "--host {} can be reached from other machines: need --api-key or --allow-no-key", flags.host);
}

std::string directory_name(std::filesystem::path path) {
  path = std::filesystem::weakly_canonical(path);
  return std::filesystem::is_directory(path) ? path.filename().string()
                                             : path.parent_path().filename().string();
}

server::ServerOptions server_options(const ServeFlags& flags) {
  server::ServerOptions options{.host = flags.host,
                                .port = flags.port,
                                .api_key = flags.api_key,
                                .model_names = flags.served_model_names,
                                .strict_model_name = !flags.any_model_name,
                                .keepalive_seconds = flags.keepalive_seconds,
                                .shutdown_timeout_seconds = flags.shutdown_timeout_seconds,
                                .vllm_metrics = flags.metrics_compat == "vllm",
                                .version = LONGSPAN_VERSION};
  if (options.model_names.empty()) options.model_names = {directory_name(flags.model.model)};
  return options;
}

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

int run(const ServeFlags& flags) {
  check(flags);
  // Blocked in every thread that is made from here on; taken by sigwait below.
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const text::Tokenizer tokenizer = load_tokenizer(flags.model);
  const text::ChatTemplate chat_template = text::ChatTemplate::load(flags.model.model);
  engine::EngineOptions options = engine_options(flags.model, tokenizer);
  options.max_num_seqs = flags.max_num_seqs;
  options.pages.prefix_caching = flags.prefix_caching;
  const auto engine = load_engine(flags.model, options);
  server::Server server(*engine, tokenizer, chat_template, server_options(flags));
  server.start();
  log(LogLevel::kInfo, "listening on http://{}:{}", flags.host, server.port());

  int signal = 0;
  sigwait(&signals, &signal);
  log(LogLevel::kInfo, "shutting down: running requests get {} s, a second signal ends at once",
      flags.shutdown_timeout_seconds);
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
  add_model_flags(*command, flags->model);
  add_server_flags(*command, *flags);
  command->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace longspan::cli
