// The real program as a server on the bundled model, in a process of its own that can be sent signals.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "support/program.h"

namespace longspan::testing {

class ServerProgram final {
 public:
  // Returns once it listens. `flags`: separated by single blanks.
  explicit ServerProgram(const std::string& flags)
      : log_(std::filesystem::temp_directory_path() /
             ("longspan_serve_" + std::to_string(::getpid()) + ".log")) {
    const std::string command =
        std::string("exec " LONGSPAN_BINARY_DIR
                    "/bin/longspan serve --port 0 --threads 1 "
                    "--max-model-len 4096 --model " LONGSPAN_SOURCE_DIR "/models/longspan-tiny ") +
        flags + " >" + log_.string() + " 2>&1";
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 3000 && port_ == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      port_ = listening_port();
    }
    EXPECT_NE(port_, 0) << log();
  }
  ~ServerProgram() {
    if (pid_ > 0) end(SIGKILL);
    std::filesystem::remove(log_);
  }
  ServerProgram(const ServerProgram&) = delete;
  ServerProgram& operator=(const ServerProgram&) = delete;

  int port() const { return port_; }
  std::string log() const {
    std::ifstream file(log_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Sends the signal and waits: the exit code, or minus the signal that killed it.
  int end(int signal) {
    ::kill(pid_, signal);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  int listening_port() const {
    const std::string text = log();
    const std::string words = "listening on http://127.0.0.1:";
    const size_t at = text.find(words);
    return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + words.size());
  }

  std::filesystem::path log_;
  pid_t pid_ = 0;
  int port_ = 0;
};

}  // namespace longspan::testing
