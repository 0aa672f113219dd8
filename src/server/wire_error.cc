#include "server/wire_error.h"

#include <nlohmann/json.hpp>

namespace longspan::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRetryAfterSeconds = "2";

// The engine's words for a prompt that does not fit are those that clients look for.
constexpr const char* kContextWords = "maximum context length";

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// A message may quote what a client sent: bytes that are no text are replaced.
std::string dump_replacing(const Json& body) {
  return body.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

HttpResponse error_response_of(const WireError& error, std::string body) {
  HttpResponse response{.status = error.status, .body = std::move(body)};
  if (error.status == 503) response.set_header("Retry-After", kRetryAfterSeconds);
  // Clients of OpenAI's kind would ask the same again, twice.
  if (error.status == 408) response.set_header("x-should-retry", "false");
  return response;
}

}  // namespace

std::string error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

WireError WireError::of(const std::exception& error) {
  WireError wire{.message = error.what()};
  const auto* known = dynamic_cast<const Error*>(&error);
  wire.status = 500;
  if (known) {
    switch (known->kind) {
      case ErrorKind::kInvalid:
      case ErrorKind::kUnsupported:
        wire.status = 400;
        break;
      case ErrorKind::kNotFound:
        wire.status = 404;
        break;
      case ErrorKind::kExhausted:
        wire.status = 503;
        break;
      case ErrorKind::kEnvironment:
        wire.status = 500;
        break;
    }
  }
  wire.type = error_type(wire.status);
  if (wire.status == 400 && wire.message.find(kContextWords) != std::string::npos) {
    wire.code = "context_length_exceeded";
    wire.param = "messages";
  }
  return wire;
}

std::string openai_error_body(const WireError& error) {
  const Json body = {{"error",
                      {{"message", error.message},
                       {"type", error.type},
                       {"param", text_or_null(error.param)},
                       {"code", text_or_null(error.code)}}}};
  return dump_replacing(body);
}

std::string anthropic_error_body(const WireError& error) {
  // The words that these clients look for before they shorten a conversation.
  const std::string prefix = error.code == "context_length_exceeded" ? "prompt is too long: " : "";
  return dump_replacing(
      {{"type", "error"},
       {"error",
        {{"type", error.status >= 500 ? "api_error" : error.type}, {"message", prefix + error.message}}}});
}

HttpResponse openai_error_response(const WireError& error) {
  return error_response_of(error, openai_error_body(error));
}

HttpResponse anthropic_error_response(const WireError& error) {
  return error_response_of(error, anthropic_error_body(error));
}

}  // namespace longspan::server
