// Service: what every handler needs, and what a generation goes through whatever its wire dialect.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/chat_prompt.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/openai_fields.h"
#include "server/running_request.h"
#include "server/server.h"

namespace longspan::server {

// Lives as long as the server. Thread-safe.
struct Service {
  engine::Engine& engine;
  const text::Tokenizer& tokenizer;
  const ServerOptions& options;
  ChatPrompter prompter;
  RequestDefaults defaults;
  int64_t started_unix_seconds;
  std::atomic<bool> draining = false;
  Metrics metrics = {};
  RequestList running = {};
  TokenMaskCache masks{tokenizer};

  const std::string& model_name() const { return options.model_names.front(); }
  // The name to answer with. An absent name is the first; an unknown one throws 404, where names are strict.
  std::string resolve_model(const std::optional<std::string>& asked) const;
};

// Submits. The prompt must fit, else a WireError in the words that clients look for. `prompt_field` is named
// in it.
std::shared_ptr<RunningRequest> start_generation(Service& service, const HttpRequest& origin,
                                                 const GenerationRequest& request,
                                                 const std::string& prompt_field);

// One whole choice.
struct Answer {
  Delta text;
  std::vector<engine::TokenOutput> tokens;
  Finish finish;
};

// Runs to the end. Throws WireError 499 when the client goes away (the request is then cancelled), 409 when
// someone else cancelled it, and 500 when the engine fails.
std::vector<Answer> collect(RunningRequest& running, size_t num_choices, const HttpPeer* peer);

// What a wire dialect makes of a generation: whole server-sent events, blank line included, or "".
struct StreamFormat {
  std::function<std::string()> begin;  // at once; may be null
  std::function<std::string(const ChoiceUpdate&, const Usage&)> update;
  std::function<std::string(const PrefillProgress&)> progress;  // may be null
  std::function<std::string(const Usage&)> end;
  std::function<std::string(const WireError&)> error;  // instead of end
  std::string keep_alive = ": keep-alive\n\n";
};

std::string sse_data(const std::string& json);

// Headers and, where comments are on, a first one go out at once; then events as they come, and a keep-alive
// whenever nothing was sent for keepalive_seconds of wall-clock time.
HttpResponse stream_response(std::shared_ptr<RunningRequest> running, const HttpPeer* peer,
                             double keepalive_seconds, StreamFormat format);

int64_t unix_seconds();

}  // namespace longspan::server
