// AgeOrder: a set of slots, of which the oldest comes first. A binary heap that knows where each slot is, so
// that every change costs O(log n) and, once there is room for all, no memory. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longspan::cache {

class AgeOrder {
 public:
  // Room for slots 0 .. max_slots - 1.
  explicit AgeOrder(int32_t max_slots);

  bool empty() const { return heap_.empty(); }
  bool contains(int32_t slot) const { return place_[static_cast<size_t>(slot)] >= 0; }
  // The slot with the smallest age; -1 when empty.
  int32_t oldest() const { return heap_.empty() ? -1 : heap_.front().slot; }
  // Puts the slot in, or moves it.
  void put(int32_t slot, uint64_t age);
  void erase(int32_t slot);  // nothing, where it is not in

 private:
  struct Entry {
    uint64_t age;
    int32_t slot;
  };
  void set(size_t place, Entry entry);
  void rise(size_t place);
  void sink(size_t place);

  std::vector<Entry> heap_;     // no entry is younger than its two followers, 2i + 1 and 2i + 2
  std::vector<int32_t> place_;  // [max_slots] in heap_; -1: not in
};

}  // namespace longspan::cache
