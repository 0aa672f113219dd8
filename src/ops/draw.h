// Drawing a token from a row of logits, in integers: their sums have no order, so the host, a card and any
// number of threads draw the same token from the same row and state. Everything here runs on a device as
// well.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace longspan::ops {

// How far below the best a logit lies: halvings of its probability, in units of 2^-26.
inline constexpr int kDistanceBits = 26;
inline constexpr uint32_t kFar = uint32_t{40} << kDistanceBits;  // and beyond: never drawn
inline constexpr double kLog2E = 1.4426950408889634;

// How a row is drawn: of the candidates in order of their distance, equal ones in that of their ids, the
// first top_k are kept; of these the first that hold top_p of their probability; of these those within
// max_distance. One of what is left is drawn by its probability.
struct DrawRow {
  float scale = 0;               // 2^26 log2(e) / temperature
  uint32_t top_k = 0;            // 0: all
  uint32_t max_distance = kFar;  // -log2(min_p), as a distance
  uint32_t unused = 0;
  uint64_t top_p = ~uint64_t{0};  // of 2^64
  uint64_t state = 0;             // of the random numbers; each draw adds kStateStep

  bool operator==(const DrawRow&) const = default;
};
static_assert(sizeof(DrawRow) == 32);  // as the device reads it

inline constexpr uint64_t kStateStep = 0x9e3779b97f4a7c15ull;
// The random number that the next draw takes (splitmix64).
constexpr uint64_t draw_random(uint64_t state) {
  uint64_t x = state + kStateStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A difference, then a product: no compiler fuses these.
constexpr uint32_t draw_distance(float best, float logit, float scale) {
  const float distance = (best - logit) * scale;
  return distance < static_cast<float>(kFar) ? static_cast<uint32_t>(distance) : kFar;
}

// 2^40 * 2^-distance, to a relative error of 2e-8; falls with the distance. The polynomial is that of
// (1 - 2^-f) / f at six Chebyshev nodes of [0, 1], its coefficients times 2^32, their signs in turn.
constexpr uint64_t draw_weight(uint32_t distance) {
  constexpr uint32_t kRest[] = {0x54a612, 0x274f388, 0xe353290, 0x3d7f7506, 0xb17217df};
  if (distance >= kFar) return 0;
  const uint64_t fraction = uint64_t{distance << (32 - kDistanceBits)} & 0xffffffffu;
  uint64_t sum = 0x78809;
  for (const uint32_t coefficient : kRest) sum = coefficient - (sum * fraction >> 32);
  return ((uint64_t{1} << 32) - (sum * fraction >> 32)) << 8 >> (distance >> kDistanceBits);
}

// floor(a * b / 2^64)
constexpr uint64_t mul_high(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffffu, a_high = a >> 32, b_low = b & 0xffffffffu, b_high = b >> 32;
  const uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
  return a_high * b_high + (middle >> 32) + (((middle & 0xffffffffu) + a_low * b_high) >> 32);
}

// Of candidates whose weights sum to `total`: the sum at which the first that hold `share` of 2^64 are
// complete. With a random number as the share it is that of the drawn one.
constexpr uint64_t share_of(uint64_t total, uint64_t share) { return mul_high(total, share) + 1; }

// The host's draw, from finite logits and -infinity, at least one of them finite. keys: memory to work in,
// all of it reserved for one number a logit.
int32_t draw_token(std::span<const float> logits, const DrawRow& row, std::vector<uint64_t>& keys);

}  // namespace longspan::ops
