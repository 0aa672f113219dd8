// How attention kernels read an element of the cache: as it is, or a code as rnd(code * scale). Without FP8
// instructions (waves of 64) a block first makes a table of all 256 codes in shared memory, scale and
// rounding included.
#pragma once

#include "ops/device/paged_kv.h"
#include "ops/device/runtime.h"

namespace longspan::ops::device {

constexpr int kNumCodes = 256;

// What a block's tables of K and V take in shared memory.
template <bool kTable>
constexpr size_t kTableBytes = kTable ? 2 * shared_bytes<float>(kNumCodes) : 0;

inline bool reads_by_table(const Device& device) { return device.info().wave == 64; }

// E: the element of the cache, T or e4m3_t.
template <class T, class E, bool kTable>
struct KvReader {
  DEVICE_FN float operator()(E element) const { return to_float(element); }
};
template <class T>
struct KvReader<T, e4m3_t, false> {
  float scale;
  DEVICE_FN float operator()(e4m3_t code) const { return rounded<T>(to_float(code) * scale); }
};
template <class T>
struct KvReader<T, e4m3_t, true> {
  Shared<float> table;  // [kNumCodes]
  DEVICE_FN float operator()(e4m3_t code) const { return table.get(code.bits); }
};

template <class T, class E, bool kTable>
struct KvReaders {
  KvReader<T, E, kTable> k, v;
};

// The readers of one kv head. Every thread of the block calls it, for a table ends with a barrier: a wave
// that reads before the others have written their part gets NaN now and then (field report 004).
template <class T, class E, bool kTable, int kThreads>
DEVICE_FN KvReaders<T, E, kTable> kv_readers(const PagedKv<E>& kv, int kv_head, SharedPool& pool) {
  KvReaders<T, E, kTable> readers{};
  if constexpr (kTable) {
    readers.k.table = pool.take<float>(kNumCodes);
    readers.v.table = pool.take<float>(kNumCodes);
    const float k_scale = kv.scale(0, kv_head), v_scale = kv.scale(1, kv_head);
    for (int i = thread_idx(); i < kNumCodes; i += kThreads) {
      const float value = to_float(e4m3_t{static_cast<uint8_t>(i)});
      readers.k.table.put(i, rounded<T>(value * k_scale));
      readers.v.table.put(i, rounded<T>(value * v_scale));
    }
    block_sync();
  } else if constexpr (sizeof(E) == 1) {
    readers.k.scale = kv.scale(0, kv_head);
    readers.v.scale = kv.scale(1, kv_head);
  }
  return readers;
}

// Calls fn.template operator()<E, kTable>() for a cache of this dtype on this device.
template <class T, class Fn>
decltype(auto) dispatch_cache(const Device& device, const KvCache& kv, Fn&& fn) {
  if (kv.dtype != DType::kF8E4M3) return fn.template operator()<T, false>();
  if constexpr (kMaxWave == 64)
    if (reads_by_table(device)) return fn.template operator()<e4m3_t, true>();
  return fn.template operator()<e4m3_t, false>();
}

}  // namespace longspan::ops::device
