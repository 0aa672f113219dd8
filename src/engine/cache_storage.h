// The memory behind the page plan: one buffer a layer tensor, device and host side, and copies of whole
// pages.
#pragma once

#include <span>
#include <vector>

#include "cache/cache_memory.h"
#include "cache/page_plan.h"
#include "core/memory.h"
#include "model/step.h"
#include "schedule/step_plan.h"

namespace longspan::engine {

class CacheStorage final {
 public:
  // Device pages lie in `memory`, which outlives this. Throws kExhausted when there is none. Pages of the
  // host are touched, and so become resident, on first use.
  CacheStorage(Memory& memory, const cache::PagePlan& plan, const cache::CacheSpec& spec,
               const cache::CacheCapacity& capacity);

  const model::CacheViews& views() const { return views_; }
  size_t size_bytes() const;

  // Elements of K and V that FP8 could not hold and that were stored as +-448. Waits for the device.
  int64_t num_saturated() const;
  void forget_saturated();

  // The order of a step: out, in, copies.
  void swap_out(std::span<const schedule::PageCopy> copies);    // device page to host page
  void swap_in(std::span<const schedule::PageCopy> copies);     // host page to device page
  void copy_pages(std::span<const schedule::PageCopy> copies);  // device to device

 private:
  // One side's tensors: pages[i] and slots[i] are layer tensor i.
  struct Side {
    std::vector<Buffer> pages;
    std::vector<Buffer> slots;  // split layout only
  };

  static Side make_side(Memory& memory, const cache::PagePlan& plan, int32_t num_pages, int32_t num_slots);
  using Copy = void (Memory::*)(void* to, const void* from, size_t size_bytes);
  void copy(Copy how, const Side& from, const Side& to, std::span<const schedule::PageCopy> copies) const;

  Memory& memory_;
  cache::PagePlan plan_;
  Side device_;
  Side host_;
  Buffer saturated_;  // i64 [1], in the device's memory
  model::CacheViews views_;
};

}  // namespace longspan::engine
