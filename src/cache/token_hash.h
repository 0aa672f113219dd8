// The content key of a token prefix: 128 bits, chained token by token, so that one pass yields the key of
// every boundary. Not a cryptographic hash: whoever finds a key compares the tokens as well.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace longspan::cache {

struct PrefixKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PrefixKey&) const = default;
};

class TokenHasher {
 public:
  explicit TokenHasher(std::string_view salt);
  void push(std::span<const int32_t> tokens);
  PrefixKey key() const { return key_; }  // of everything pushed so far

 private:
  PrefixKey key_;
};

}  // namespace longspan::cache
