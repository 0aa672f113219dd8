// CacheMemory: the pools of one rank (device and host) and the prefix index that fills what is free. Who asks
// for a page gets a free one, else the one least recently used by the index. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/page_plan.h"
#include "cache/page_pool.h"
#include "cache/prefix_index.h"
#include "cache/state_slot.h"

namespace longspan::cache {

struct CacheCapacity {
  int32_t num_pages = 0;         // device pages, see MemoryPlan
  int32_t num_state_slots = 0;   // split layout only
  int32_t num_host_pages = 0;    // for sequences swapped out; 0: preemption replays instead
  int32_t num_host_slots = 0;    // split layout only
  int32_t max_pinned_pages = 0;  // these never come back for others while pinned
  int32_t max_pinned_slots = 0;  // split layout only
};

class CacheMemory {
 public:
  CacheMemory(const PagePlan& plan, const CacheCapacity& capacity);

  // All or nothing; empty when neither free nor evictable pages suffice.
  std::optional<std::vector<Page>> allocate_pages(int64_t count);
  std::optional<Page> allocate_page();        // one, for a step that must not allocate memory
  std::optional<StateSlot> allocate_state();  // num_tokens 0; an empty slot in a dense model
  // For a state that may be of use one day: from free pages, or those of older checkpoints, never from KV.
  std::optional<StateSlot> allocate_checkpoint();
  std::optional<std::vector<Page>> allocate_host_pages(int64_t count);
  std::optional<StateSlot> allocate_host_state();

  // Could this many pages and states be had now? Never too pessimistic.
  bool may_fit(int64_t num_pages, int64_t num_states) const;
  // Could they be had if nothing else ran?
  bool can_ever_fit(int64_t num_pages, int64_t num_states) const;

  PrefixIndex* index() { return index_.get(); }  // null when prefix caching is off
  const PrefixIndex* index() const { return index_.get(); }
  PagePool& pages() { return pages_; }
  const PagePool& pages() const { return pages_; }
  const PagePool& states() const { return slots_ ? *slots_ : pages_; }  // unified: the same pool
  const PagePool& host_pages() const { return host_pages_; }
  const PagePool& host_states() const { return host_slots_ ? *host_slots_ : host_pages_; }

 private:
  std::optional<Page> take_one(PagePool& pool, bool evict);
  std::optional<std::vector<Page>> take(PagePool& pool, int64_t count, bool evict);

  int32_t num_state_groups_ = 0;
  PagePool pages_;
  std::unique_ptr<PagePool> slots_;  // split layout only
  PagePool host_pages_;
  std::unique_ptr<PagePool> host_slots_;
  std::unique_ptr<PrefixIndex> index_;  // last: its handles go before the pools do
};

}  // namespace longspan::cache
