// Random numbers by counter: what is drawn depends on a key and a place alone, not on the order of calls.
#pragma once

#include <cstdint>

namespace longspan::model {

// splitmix64 (Steele, Lea, Flood 2014) at a place of its stream.
inline uint64_t random_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace longspan::model
