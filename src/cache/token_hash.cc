#include "cache/token_hash.h"

namespace longspan::cache {
namespace {

// One chain step: add, multiply 64 x 64 -> 128, fold. Two lanes with different constants make 128 bits.
uint64_t mix(uint64_t lane, uint64_t value, uint64_t factor) {
  const unsigned __int128 product = static_cast<unsigned __int128>(lane ^ value) * factor;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ (lane << 1 | lane >> 63);
}

void advance(PrefixKey& key, uint64_t value) {
  // Odd constants, from the fractions of the golden ratio and of pi; the sums keep token 0 from vanishing.
  key.low = mix(key.low, value + 0x9e3779b97f4a7c15u, 0xd6e8feb86659fd93u);
  key.high = mix(key.high, value + 0x243f6a8885a308d3u, 0xa0761d6478bd642fu);
}

}  // namespace

TokenHasher::TokenHasher(std::string_view salt) {
  key_ = {0x452821e638d01377u, 0xbe5466cf34e90c6cu};
  for (const char c : salt) advance(key_, static_cast<unsigned char>(c));
  advance(key_, 0x100 + salt.size());
}

void TokenHasher::push(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) advance(key_, static_cast<uint32_t>(token));
}

}  // namespace longspan::cache
