#include "server/route_table.h"

#include <algorithm>
#include <random>

#include "core/log.h"
#include "server/wire_error.h"

namespace longspan::server {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

std::string random_id() {  // 24 hexadecimal digits
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:08x}", random(), random() >> 32);
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
  type.erase(type.find_last_not_of(" \t") + 1);
  std::transform(type.begin(), type.end(), type.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
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

// In the words of the dialect that was asked in.
HttpResponse error_response(const HttpRequest& request, const WireError& error) {
  const bool anthropic = request.path.rfind("/v1/messages", 0) == 0;
  return anthropic ? anthropic_error_response(error) : openai_error_response(error);
}

HttpResponse unknown(const HttpRequest& request, const RouteMatch& match) {
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

}  // namespace

RouteTable::RouteTable(std::vector<Route> routes, std::string api_key)
    : routes_(std::move(routes)), key_(std::move(api_key)) {}

HttpResponse RouteTable::handle(HttpRequest& request) const {
  request.id = request_id(request);
  HttpResponse response = answer(request);
  response.set_header("x-request-id", request.id);
  return response;
}

// The one place where errors become responses.
HttpResponse RouteTable::answer(HttpRequest& request) const {
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

HttpResponse RouteTable::dispatch(HttpRequest& request) const {
  RouteMatch match = find_route(routes_, request.method, request.path);
  if (!match.route || match.route->access == Access::kKey) key_.check(request);
  if (!match.route) return unknown(request, match);
  check_content_type(request);
  check_content_encoding(request);
  request.parts = std::move(match.parts);
  return match.route->handler(request);
}

}  // namespace longspan::server
