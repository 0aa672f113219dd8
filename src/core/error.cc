#include "core/error.h"

#include <cstdio>
#include <cstdlib>

namespace longspan {

int exit_code(ErrorKind kind) {
  return kind == ErrorKind::kExhausted || kind == ErrorKind::kEnvironment ? 3 : 2;
}

namespace detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed%s%s\n", file, line, condition, message.empty() ? "" : ": ",
               message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace detail
}  // namespace longspan
