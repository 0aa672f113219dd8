// Server: an engine behind OpenAI's HTTP API.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/http_server.h"

namespace longspan::engine {
class Engine;
}
namespace longspan::text {
class ChatTemplate;
class Tokenizer;
}  // namespace longspan::text

namespace longspan::server {

class ProfileControl;

// What /v1/longspan/status says about the program that runs and the settings in effect, so that others can
// compare both with the files on disk.
struct BuildFacts {
  std::string path;  // of the program
  std::string hash;  // of the build, as measure/program.h has it
};
struct SettingFact {
  std::string key;    // "cache.block_size"
  std::string value;  // as in TOML, secrets masked
  std::string source;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                       // 0: any free one
  std::string api_key;                   // empty: everyone may ask
  std::vector<std::string> model_names;  // at least one; the first is what answers say
  bool strict_model_name = true;         // false: any name in a request is taken for the first
  double keepalive_seconds = 10;         // of silence, after which a stream gets a comment; 0: never
  double shutdown_timeout_seconds = 30;  // that running requests get after stop()
  double request_timeout_seconds = 0;    // of a generation, from its arrival; 0: no limit
  int32_t max_choices = 64;              // choices of one request: prompts times n
  double stall_seconds = 300;            // a step of the engine that takes longer turns /health red
  bool log_requests = true;              // a line for each request that ended
  bool vllm_metrics = false;             // /metrics has vllm:* aliases for existing dashboards
  std::string version;
  BuildFacts build;
  std::vector<SettingFact> settings;
  ProfileControl* profiler = nullptr;  // borrowed; null: no profile is taken
  HttpLimits http;
};

// Thread-safe. Borrows engine, tokenizer and template, which must outlive it.
class Server final {
 public:
  // Binds. Throws kInvalid on options that cannot work and kEnvironment when the address cannot be had.
  Server(engine::Engine& engine, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
         ServerOptions options);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  void start();
  // Drains: new requests get 503, running ones may end within `shutdown_timeout_seconds`. True when all did.
  bool drain();
  void stop();  // at once

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan::server
