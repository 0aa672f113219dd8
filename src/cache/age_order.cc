#include "cache/age_order.h"

namespace longspan::cache {

AgeOrder::AgeOrder(int32_t max_slots) : place_(static_cast<size_t>(max_slots), -1) {
  heap_.reserve(place_.size());
}

void AgeOrder::set(size_t place, Entry entry) {
  heap_[place] = entry;
  place_[static_cast<size_t>(entry.slot)] = static_cast<int32_t>(place);
}

void AgeOrder::rise(size_t place) {
  const Entry entry = heap_[place];
  while (place > 0 && heap_[(place - 1) / 2].age > entry.age) {
    set(place, heap_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  set(place, entry);
}

void AgeOrder::sink(size_t place) {
  const Entry entry = heap_[place];
  for (;;) {
    size_t next = 2 * place + 1;
    if (next >= heap_.size()) break;
    if (next + 1 < heap_.size() && heap_[next + 1].age < heap_[next].age) ++next;
    if (heap_[next].age >= entry.age) break;
    set(place, heap_[next]);
    place = next;
  }
  set(place, entry);
}

void AgeOrder::put(int32_t slot, uint64_t age) {
  if (!contains(slot)) {
    heap_.push_back({age, slot});
    rise(heap_.size() - 1);
    return;
  }
  const auto place = static_cast<size_t>(place_[static_cast<size_t>(slot)]);
  heap_[place].age = age;
  rise(place);
  sink(static_cast<size_t>(place_[static_cast<size_t>(slot)]));
}

void AgeOrder::erase(int32_t slot) {
  if (!contains(slot)) return;
  const auto place = static_cast<size_t>(place_[static_cast<size_t>(slot)]);
  place_[static_cast<size_t>(slot)] = -1;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place == heap_.size()) return;
  set(place, last);
  rise(place);
  sink(static_cast<size_t>(place_[static_cast<size_t>(last.slot)]));
}

}  // namespace longspan::cache
