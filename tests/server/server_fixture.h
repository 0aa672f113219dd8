// A real server on the bundled model, shared by the tests of a program: loading takes longer than most of
// them.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "server/client.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace longspan::testing {

inline constexpr int kContext = 4096;  // tokens
inline constexpr int kRows = 4;        // sequences in a step
inline constexpr int kQueue = 8;       // requests that may wait

class Running {
 public:
  static Running& shared() {
    static Running running;
    return running;
  }

  // The same with prefix caching, which is off above.
  static Running& caching() {
    static Running running(/*prefix_caching=*/true);
    return running;
  }

  engine::Engine& engine() { return *engine_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  int port() const { return server_->port(); }
  // A second server on the same engine, with other options.
  std::unique_ptr<server::Server> serve(server::ServerOptions options) {
    options.port = 0;
    if (options.model_names.empty()) options.model_names = {"tiny", "other-name"};
    auto server = std::make_unique<server::Server>(*engine_, tokenizer_, template_, std::move(options));
    server->start();
    return server;
  }
  // Waits until the engine runs nothing.
  bool becomes_idle() const {
    for (int i = 0; i < 500; ++i) {
      const engine::EngineStatus status = engine_->status();
      if (status.schedule.num_running == 0 && status.schedule.num_waiting == 0 && status.num_inbox == 0)
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }

 private:
  explicit Running(bool prefix_caching = false)
      : tokenizer_(text::Tokenizer::load(directory())),
        template_(text::ChatTemplate::load(directory())),
        engine_(std::make_unique<engine::Engine>(
            engine::EngineOptions{.model = directory(),
                                  .num_threads = 1,
                                  .max_model_len = kContext,
                                  .max_num_seqs = kRows,
                                  .max_num_batched_tokens = 256,
                                  .max_waiting = kQueue,
                                  .pages = {.prefix_caching = prefix_caching}})),
        server_(serve({})) {}
  static std::string directory() { return std::string(LONGSPAN_SOURCE_DIR) + "/models/longspan-tiny"; }

  text::Tokenizer tokenizer_;
  text::ChatTemplate template_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<server::Server> server_;
};

inline Json user_says(const std::string& text) {
  return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"temperature", 0}, {"max_tokens", 24}};
}

inline constexpr const char* kChat = "/v1/chat/completions";

inline Reply post(const char* path, const Json& body) {
  return Client(Running::shared().port()).post(path, body);
}

inline Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

}  // namespace longspan::testing
