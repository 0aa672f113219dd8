#include "server/server.h"

#include <algorithm>
#include <thread>

#include "core/log.h"
#include "server/anthropic_messages.h"
#include "server/api_key.h"
#include "server/http_router.h"
#include "server/info_routes.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/openai_responses.h"
#include "server/operation_routes.h"
#include "server/page_routes.h"
#include "server/service.h"
#include "server/systemd.h"

namespace longspan::server {
namespace {

constexpr std::chrono::milliseconds kDrainTick{20};
constexpr size_t kMaxRequestIdBytes = 128;

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

// The client's own id where it is fit for a header and a log line, else a new one.
std::string request_id(const HttpRequest& request) {
  const auto given = request.header("x-request-id");
  const auto fit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (given && !given->empty() && given->size() <= kMaxRequestIdBytes &&
      std::all_of(given->begin(), given->end(), fit))
    return std::string(*given);
  return random_id();
}

// JSON, or what curl says when nobody told it otherwise.
void check_content_type(const HttpRequest& request) {
  if (request.method != "POST" || request.body.empty()) return;
  std::string type(request.header("content-type").value_or(""));
  type = type.substr(0, type.find(';'));
  if (type.empty() || type.find("json") != std::string::npos || type == "application/x-www-form-urlencoded" ||
      type == "text/plain")
    return;
  throw WireError{
      .status = 415,
      .type = error_type(415),
      .message = fmt::format("Content-Type: got '{}', need application/json", type.substr(0, 80))};
}

void check_content_encoding(const HttpRequest& request) {
  const auto encoding = request.header("content-encoding");
  if (!encoding || encoding->empty() || *encoding == "identity") return;
  throw WireError{.status = 415,
                  .type = error_type(415),
                  .message = fmt::format("Content-Encoding: got '{}', need none", encoding->substr(0, 80))};
}

}  // namespace

class Server::Impl {
 public:
  Impl(engine::Engine& engine, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
       ServerOptions options)
      : options_(checked(std::move(options))),
        key_(options_.api_key),
        service_{.engine = engine,
                 .tokenizer = tokenizer,
                 .options = options_,
                 .prompter = ChatPrompter(tokenizer, chat_template),
                 .defaults = {.sampling = engine::default_sampling(engine.info().generation),
                              .max_choices = options_.max_choices,
                              .keepalive_seconds = options_.keepalive_seconds},
                 .started_unix_seconds = unix_seconds()},
        routes_(make_routes(service_)),
        http_(
            options_.host, options_.port, options_.http,
            [this](HttpRequest& request) { return handle(request); },
            [](int status, const std::string& message) {
              return openai_error_response(
                  {.status = status, .type = error_type(status), .message = message});
            }) {}

  int port() const { return http_.port(); }
  void start() {
    http_.start();
    notify_service_manager("READY=1");
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

  HttpResponse handle(HttpRequest& request) {
    request.id = request_id(request);
    HttpResponse response = answer(request);
    response.set_header("x-request-id", request.id);
    return response;
  }

  // The one place where errors become responses.
  HttpResponse answer(HttpRequest& request) {
    try {
      return dispatch(request);
    } catch (const WireError& error) {
      return error_response(request, error);
    } catch (const std::exception& error) {
      const WireError wire = WireError::of(error);
      if (wire.status >= 500 && wire.status != 503)
        log(LogLevel::kError, "{} {}: {}", request.method, request.path, wire.message);
      return error_response(request, wire);
    }
  }

  // In the words of the dialect that was asked in.
  static HttpResponse error_response(const HttpRequest& request, const WireError& error) {
    const bool anthropic = request.path.rfind("/v1/messages", 0) == 0;
    return anthropic ? anthropic_error_response(error) : openai_error_response(error);
  }

  HttpResponse dispatch(HttpRequest& request) {
    RouteMatch match = find_route(routes_, request.method, request.path);
    if (!match.route || match.route->access == Access::kKey) key_.check(request);
    if (!match.route) return unknown(request, match);
    check_content_type(request);
    check_content_encoding(request);
    request.parts = std::move(match.parts);
    return match.route->handler(request);
  }

  static HttpResponse unknown(const HttpRequest& request, const RouteMatch& match) {
    const bool known_path = !match.allowed_methods.empty();
    WireError error{.status = known_path ? 405 : 404};
    error.type = error_type(error.status);
    error.code = known_path ? "method_not_allowed" : "route_not_found";
    error.message = known_path
                        ? fmt::format("{} {}: need {}", request.method, request.path, match.allowed_methods)
                        : fmt::format("there is no {} {}", request.method, request.path);
    HttpResponse response = openai_error_response(error);
    if (known_path) response.set_header("Allow", match.allowed_methods);
    return response;
  }

  ServerOptions options_;
  ApiKey key_;
  Service service_;
  std::vector<Route> routes_;
  HttpServer http_;  // last: its handlers use all of the above
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
