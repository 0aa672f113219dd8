// Errors. A user's or the world's mistake throws Error (load, parse, HTTP and command-line code only);
// a programmer's mistake aborts through CHECK. The engine thread never throws.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace longspan {

enum class ErrorKind : uint8_t {
  kInvalid,      // bad usage, bad input, malformed file: exit code 2, HTTP 400
  kNotFound,     // a named thing does not exist: exit code 2, HTTP 404
  kUnsupported,  // well formed, but this build or device cannot: exit code 2, HTTP 400
  kExhausted,    // a limit with a name was reached: exit code 3, HTTP 503
  kEnvironment,  // the machine, a driver, a socket, the disk: exit code 3, HTTP 500
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind error_kind, const std::string& message) : std::runtime_error(message), kind(error_kind) {}
  const ErrorKind kind;
};

// Throws Error with a formatted message: `fail(ErrorKind::kInvalid, "[{}] got {}, need {}", op, a, b)`.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// Process exit code for an error kind (SYSTEM contract: 2 bad usage or input, 3 environment).
int exit_code(ErrorKind kind);

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace detail

}  // namespace longspan

// Programmer errors. On in release builds; prints place, condition and message, then aborts.
#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::longspan::detail::check_failed(__FILE__, __LINE__, #condition, std::string()); \
  } while (false)
#define CHECK_MSG(condition, ...)                                                                   \
  do {                                                                                              \
    if (!(condition)) [[unlikely]]                                                                  \
      ::longspan::detail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
