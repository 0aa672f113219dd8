// ApiKey: who may ask.
#pragma once

#include <string>

#include "server/http_server.h"

namespace longspan::server {

// Immutable. An empty key lets everyone in.
class ApiKey final {
 public:
  explicit ApiKey(std::string key);  // throws kInvalid when it is longer than kMaxBytes or not printable

  static constexpr size_t kMaxBytes = 256;

  // Looks at "Authorization: Bearer KEY", "x-api-key: KEY" and "api-key: KEY"; takes the same time for every
  // wrong key. Throws WireError 401 otherwise.
  void check(const HttpRequest& request) const;

 private:
  std::string key_;
};

}  // namespace longspan::server
