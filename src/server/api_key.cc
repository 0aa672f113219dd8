#include "server/api_key.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "server/wire_error.h"

namespace longspan::server {
namespace {

// Compares all kMaxBytes and the length, whatever the keys are.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  std::array<unsigned char, ApiKey::kMaxBytes> a{};
  std::array<unsigned char, ApiKey::kMaxBytes> b{};
  std::copy_n(given.begin(), std::min(given.size(), a.size()), a.begin());
  std::copy_n(key.begin(), std::min(key.size(), b.size()), b.begin());
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

[[noreturn]] void refuse(const std::string& message) {
  throw WireError{.status = 401, .type = error_type(401), .code = "invalid_api_key", .message = message};
}

// The credentials of a Bearer authorization; empty for another scheme.
std::string_view bearer_key(std::string_view value) {
  constexpr std::string_view kScheme = "bearer ";
  const bool is_bearer =
      value.size() > kScheme.size() && std::equal(kScheme.begin(), kScheme.end(), value.begin(),
                                                  [](char a, char b) { return a == (b | 0x20); });
  if (!is_bearer) return {};
  value.remove_prefix(kScheme.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value.substr(0, value.find_last_not_of(" \t") + 1);
}

}  // namespace

ApiKey::ApiKey(std::string key) : key_(std::move(key)) {
  const bool printable = std::all_of(key_.begin(), key_.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (key_.size() > kMaxBytes || !printable)
    fail(ErrorKind::kInvalid, "the API key: got {} bytes, need at most {} printable characters", key_.size(),
         kMaxBytes);
}

void ApiKey::check(const HttpRequest& request) const {
  if (key_.empty()) return;
  for (const char* name : {"x-api-key", "api-key"})
    if (const auto given = request.header(name); given && equal_in_constant_time(*given, key_)) return;
  const auto authorization = request.header("authorization");
  if (!authorization) refuse("no API key was given: send 'Authorization: Bearer KEY'");
  const std::string_view given = bearer_key(*authorization);
  if (given.empty()) refuse("the Authorization header is not of the form 'Bearer KEY'");
  if (!equal_in_constant_time(given, key_)) refuse("the API key is not valid");
}

}  // namespace longspan::server
