// Runs the real program and keeps what it printed.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace longspan::testing {

struct Outcome {
  int exit_code = 0;  // minus the signal when it was killed
  std::string out;    // both streams
};

inline Outcome longspan(const std::string& arguments) {
  const std::string command =
      std::string(LONGSPAN_BINARY_DIR "/bin/longspan ") + arguments + " 2>&1 </dev/null";
  Outcome outcome;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.out.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return outcome;
}

}  // namespace longspan::testing
