// Test helpers: a directory that removes itself, hand-made safetensors bytes, and the message of an Error.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "core/error.h"

namespace longspan::io {

inline std::filesystem::path fixture(std::string_view name) {
  return std::filesystem::path(LONGSPAN_SOURCE_DIR) / "tests/fixtures" / name;
}

inline std::filesystem::path bundled_model() {
  return std::filesystem::path(LONGSPAN_SOURCE_DIR) / "models/longspan-tiny";
}

class TempDirectory final {
 public:
  TempDirectory() {
    static std::atomic<int> counter = 0;
    path_ = std::filesystem::temp_directory_path() / fmt::format("longspan_io_{}_{}", ::getpid(), counter++);
    std::filesystem::create_directories(path_);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// The bytes of a file: length, header, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = "") {
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes.append(header).append(data);
}

// Runs fn, which must throw an Error of this kind, and returns its message.
template <class Fn>
std::string error_of(ErrorKind kind, Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// gtest's HasSubstr without gmock.
inline testing::AssertionResult contains(const std::string& text, std::string_view part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << text << "\" does not contain \"" << part << "\"";
}

}  // namespace longspan::io
