// WireError: an error with what HTTP clients are told about it. The one place that maps errors to statuses.
#pragma once

#include <exception>
#include <string>

#include "core/error.h"
#include "server/http_server.h"

namespace longspan::server {

// Thrown by handlers. Error of core becomes one of these through of().
struct WireError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;   // empty: null
  std::string param;  // the field at fault; empty: null
  std::string message;

  static WireError of(const std::exception& error);
};

// Throws kInvalid's counterpart that names a field: message "FIELD: ...".
template <class... Args>
[[noreturn]] void fail_field(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
  throw WireError{.param = field,
                  .message = fmt::format("{}: {}", field, fmt::format(format, std::forward<Args>(args)...))};
}

// For a type that comes from a status alone.
std::string error_type(int status);

// {"error": {"message", "type", "param", "code"}}, the form of OpenAI.
std::string openai_error_body(const WireError& error);
HttpResponse openai_error_response(const WireError& error);

// {"type": "error", "error": {"type", "message"}}, the form of Anthropic.
std::string anthropic_error_body(const WireError& error);
HttpResponse anthropic_error_response(const WireError& error);

}  // namespace longspan::server
