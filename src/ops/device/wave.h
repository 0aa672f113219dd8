// Collectives of a wave (32 or 64 lanes in lock step) and of a block. The wave's width is a template
// parameter; lane masks do not exist. Sums have one fixed order: a butterfly in the wave, then the waves in
// order.
#pragma once

#include "ops/device/memory.h"

namespace longspan::ops::device {

template <int kWave>
struct Wave {
  static_assert(kWave == 32 || kWave == 64);
  static DEVICE_FN int lane() { return thread_idx() % kWave; }
  static DEVICE_FN int index() { return thread_idx() / kWave; }  // of this wave in the block
  static DEVICE_FN float sum(float value) { return group_sum<kWave>(value); }
  static DEVICE_FN uint64_t sum(uint64_t value) {
#pragma unroll
    for (int mask = kWave / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask, kWave);
    return value;
  }
  // Of the lanes up to this one.
  static DEVICE_FN uint64_t running_sum(uint64_t value) {
#pragma unroll
    for (int step = 1; step < kWave; step *= 2) {
      const int from = lane() - step;
      const uint64_t other = shuffle(value, from < 0 ? 0 : from, kWave);
      value += from < 0 ? 0 : other;
    }
    return value;
  }
  static DEVICE_FN float max(float value) { return group_max<kWave>(value); }
  template <class T>
  static DEVICE_FN T broadcast(T value, int from) {
    return shuffle(value, from, kWave);
  }
};

// Sum over the kThreads threads of a block, the same bits in each. scratch: f32 [kThreads / kWave], free to
// use again after the next block_sync().
template <int kWave, int kThreads>
DEVICE_FN float block_sum(float value, Shared<float> scratch) {
  static_assert(kThreads % kWave == 0);
  value = Wave<kWave>::sum(value);
  if constexpr (kThreads == kWave) return value;
  if (Wave<kWave>::lane() == 0) scratch.put(Wave<kWave>::index(), value);
  block_sync();
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kThreads / kWave; ++i) total += scratch.get(i);
  return total;
}

// The maximum in the same way.
template <int kWave, int kThreads>
DEVICE_FN float block_max(float value, Shared<float> scratch) {
  static_assert(kThreads % kWave == 0);
  value = Wave<kWave>::max(value);
  if constexpr (kThreads == kWave) return value;
  if (Wave<kWave>::lane() == 0) scratch.put(Wave<kWave>::index(), value);
  block_sync();
  float max = value;
#pragma unroll
  for (int i = 0; i < kThreads / kWave; ++i) max = fmaxf(max, scratch.get(i));
  return max;
}

}  // namespace longspan::ops::device
