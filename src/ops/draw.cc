#include "ops/draw.h"

#include <algorithm>

namespace longspan::ops {
namespace {

// A candidate: its distance, then its id, so that the order of the keys is that of the candidates.
uint64_t weight_of_key(uint64_t key) { return draw_weight(static_cast<uint32_t>(key >> 32)); }

uint64_t weight_of_keys(std::span<const uint64_t> keys) {
  uint64_t total = 0;
  for (const uint64_t key : keys) total += weight_of_key(key);
  return total;
}

// How many candidates, best first, have weights that sum to `sum` or more; these stand in front on return. By
// halves: where the sum lies in the first one, the second is not looked at again.
size_t reach(std::span<uint64_t> keys, uint64_t sum) {
  auto first = keys.begin(), last = keys.end();
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last);
    const uint64_t front = weight_of_keys({first, middle});
    if (front >= sum) {
      last = middle;
    } else {
      sum -= front;
      first = middle;
    }
  }
  return static_cast<size_t>(last - keys.begin());
}

}  // namespace

int32_t draw_token(std::span<const float> logits, const DrawRow& row, std::vector<uint64_t>& keys) {
  const float best = *std::max_element(logits.begin(), logits.end());
  keys.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    if (const uint32_t distance = draw_distance(best, logits[i], row.scale); distance < kFar)
      keys.push_back(uint64_t{distance} << 32 | i);
  if (row.top_k > 0 && row.top_k < keys.size()) {
    std::nth_element(keys.begin(), keys.begin() + row.top_k, keys.end());
    keys.resize(row.top_k);
  }
  if (row.top_p != ~uint64_t{0}) keys.resize(reach(keys, share_of(weight_of_keys(keys), row.top_p)));
  if (row.max_distance < kFar)
    std::erase_if(keys, [&](uint64_t key) { return key >> 32 > row.max_distance; });
  const size_t count = reach(keys, share_of(weight_of_keys(keys), draw_random(row.state)));
  return static_cast<int32_t>(keys[count - 1]);
}

}  // namespace longspan::ops
