#include "server/server.h"

#include <optional>
#include <thread>

#include "core/error.h"
#include "server/anthropic_messages.h"
#include "server/info_routes.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/openai_responses.h"
#include "server/operation_routes.h"
#include "server/page_routes.h"
#include "server/profile_routes.h"
#include "server/route_table.h"
#include "server/service.h"
#include "server/systemd.h"

namespace longspan::server {
namespace {

constexpr std::chrono::milliseconds kDrainTick{20};

using ServiceHandler = HttpResponse (*)(const HttpRequest&, Service&);

// Known to clients, not offered by this server.
HttpResponse not_offered(const HttpRequest& request, Service&) {
  throw WireError{.status = 501,
                  .type = error_type(501),
                  .code = "not_implemented",
                  .message = fmt::format("this server does not offer {}", request.path)};
}

std::vector<Route> make_routes(Service& service) {
  const auto route = [&service](const char* method, const char* pattern, ServiceHandler handler,
                                Access access = Access::kKey) {
    return Route{method, pattern, access,
                 [&service, handler](const HttpRequest& request) { return handler(request, service); }};
  };
  // clang-format off
  return {
      route("GET", "/", show_page, Access::kOpen),
      route("GET", "/page/{}", show_page_file, Access::kOpen),
      route("GET", "/health", health, Access::kOpen),
      route("GET", "/ready", ready),
      route("GET", "/version", show_version),
      route("GET", "/v1/models", list_models),
      route("GET", "/v1/models/{}", show_model),
      route("POST", "/v1/chat/completions", chat_completions),
      route("POST", "/v1/completions", completions),
      route("POST", "/v1/messages", anthropic_messages),
      route("POST", "/v1/messages/count_tokens", count_message_tokens),
      route("POST", "/v1/responses", openai_responses),
      route("POST", "/v1/requests/{}/cancel", cancel_request),
      route("GET", "/v1/longspan/status", show_status),
      route("POST", "/v1/longspan/profile/start", start_profile),
      route("POST", "/v1/longspan/profile/stop", stop_profile),
      route("GET", "/metrics", show_metrics),
      route("POST", "/reset_prefix_cache", reset_prefix_cache),
      route("POST", "/tokenize", tokenize),
      route("POST", "/detokenize", detokenize),
      route("POST", "/apply-template", apply_template),
      route("POST", "/v1/embeddings", not_offered),
      route("POST", "/v1/rerank", not_offered),
      route("POST", "/v1/score", not_offered),
  };
  // clang-format on
}

}  // namespace

class Server::Impl {
 public:
  Impl(engine::Engine& engine, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
       ServerOptions options)
      : options_(checked(std::move(options))),
        service_{.engine = engine,
                 .tokenizer = tokenizer,
                 .options = options_,
                 .prompter = ChatPrompter(tokenizer, chat_template),
                 .defaults = {.sampling = engine::default_sampling(engine.info().generation),
                              .max_choices = options_.max_choices,
                              .keepalive_seconds = options_.keepalive_seconds},
                 .started_unix_seconds = unix_seconds()},
        routes_(make_routes(service_), options_.api_key),
        http_(
            options_.host, options_.port, options_.http,
            [this](HttpRequest& request) { return routes_.handle(request); },
            [](int status, const std::string& message) {
              return openai_error_response(
                  {.status = status, .type = error_type(status), .message = message});
            }) {}

  int port() const { return http_.port(); }
  void start() {
    http_.start();
    notify_service_manager("READY=1");
    watchdog_.emplace([this] { return !trouble(service_); });
  }

  bool drain() {
    service_.draining = true;
    notify_service_manager("STOPPING=1");
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.shutdown_timeout_seconds);
    while (http_.num_busy() > 0) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kDrainTick);
    }
    return true;
  }

  void stop() {
    service_.draining = true;
    http_.stop();
  }

 private:
  static ServerOptions checked(ServerOptions options) {
    if (options.model_names.empty()) fail(ErrorKind::kInvalid, "the server needs a model name");
    return options;
  }

  ServerOptions options_;
  Service service_;
  RouteTable routes_;
  HttpServer http_;  // its handlers use all of the above
  std::optional<Watchdog> watchdog_;
};

Server::Server(engine::Engine& engine, const text::Tokenizer& tokenizer,
               const text::ChatTemplate& chat_template, ServerOptions options)
    : impl_(std::make_unique<Impl>(engine, tokenizer, chat_template, std::move(options))) {}
Server::~Server() { stop(); }
int Server::port() const { return impl_->port(); }
void Server::start() { impl_->start(); }
bool Server::drain() { return impl_->drain(); }
void Server::stop() { impl_->stop(); }

}  // namespace longspan::server
