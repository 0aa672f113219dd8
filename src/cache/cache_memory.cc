#include "cache/cache_memory.h"

#include <algorithm>

namespace longspan::cache {
namespace {

std::unique_ptr<PagePool> make_slots(const PagePlan& plan, int32_t count, int32_t max_pinned) {
  const bool own_pool = plan.layout == Layout::kSplit && plan.num_state_groups() > 0;
  return own_pool ? std::make_unique<PagePool>(count, max_pinned) : nullptr;
}

std::unique_ptr<PrefixIndex> make_index(const PagePlan& plan, const CacheCapacity& capacity) {
  if (!plan.prefix_caching) return nullptr;
  PrefixIndexOptions options;
  options.page_tokens = plan.page_tokens;
  options.needs_state = plan.num_state_groups() > 0;
  options.min_boundary = options.needs_state ? kGrid : plan.page_tokens;
  options.max_nodes =
      std::max(2 * capacity.num_pages, 16);  // a page is in one full node and seldom in a partial one
  return std::make_unique<PrefixIndex>(options);
}

}  // namespace

CacheMemory::CacheMemory(const PagePlan& plan, const CacheCapacity& capacity)
    : num_state_groups_(plan.num_state_groups()),
      pages_(capacity.num_pages, capacity.max_pinned_pages),
      slots_(make_slots(plan, capacity.num_state_slots, capacity.max_pinned_slots)),
      host_pages_(capacity.num_host_pages),
      host_slots_(make_slots(plan, capacity.num_host_slots, /*max_pinned=*/0)),
      index_(make_index(plan, capacity)) {}

std::optional<Page> CacheMemory::take_one(PagePool& pool, bool evict) {
  for (;;) {
    if (std::optional<Page> page = pool.allocate()) return page;
    if (!evict || !index_ || !index_->evict(pool)) return std::nullopt;
  }
}

std::optional<std::vector<Page>> CacheMemory::take(PagePool& pool, int64_t count, bool evict) {
  std::vector<Page> pages;
  pages.reserve(static_cast<size_t>(count));
  while (std::ssize(pages) < count) {
    std::optional<Page> page = take_one(pool, evict);
    if (!page) return std::nullopt;
    pages.push_back(std::move(*page));
  }
  return pages;
}

std::optional<Page> CacheMemory::allocate_page() { return take_one(pages_, /*evict=*/true); }

std::optional<std::vector<Page>> CacheMemory::allocate_pages(int64_t count) {
  return take(pages_, count, /*evict=*/true);
}

std::optional<StateSlot> CacheMemory::allocate_state() {
  std::optional<std::vector<Page>> pages = take(slots_ ? *slots_ : pages_, num_state_groups_, /*evict=*/true);
  if (!pages) return std::nullopt;
  return StateSlot{.pages = std::move(*pages), .num_tokens = 0};
}

std::optional<StateSlot> CacheMemory::allocate_checkpoint() {
  PagePool& pool = slots_ ? *slots_ : pages_;
  while (pool.num_free() < num_state_groups_)
    if (!index_ || !index_->evict_state(pool)) return std::nullopt;
  return allocate_state();
}

std::optional<std::vector<Page>> CacheMemory::allocate_host_pages(int64_t count) {
  return take(host_pages_, count, /*evict=*/false);
}

std::optional<StateSlot> CacheMemory::allocate_host_state() {
  std::optional<std::vector<Page>> pages =
      take(host_slots_ ? *host_slots_ : host_pages_, num_state_groups_, /*evict=*/false);
  if (!pages) return std::nullopt;
  return StateSlot{.pages = std::move(*pages), .num_tokens = 0};
}

bool CacheMemory::may_fit(int64_t num_pages, int64_t num_states) const {
  const auto fits = [](const PagePool& pool, int64_t count) {
    return count <= pool.num_free() + pool.num_reclaimable();
  };
  const int64_t state_pages = num_states * num_state_groups_;
  return slots_ ? fits(pages_, num_pages) && fits(*slots_, state_pages)
                : fits(pages_, num_pages + state_pages);
}

bool CacheMemory::can_ever_fit(int64_t num_pages, int64_t num_states) const {
  const auto fits = [](const PagePool& pool, int64_t count) {
    return count <= pool.num_pages() - pool.max_pinned();
  };
  const int64_t state_pages = num_states * num_state_groups_;
  return slots_ ? fits(pages_, num_pages) && fits(*slots_, state_pages)
                : fits(pages_, num_pages + state_pages);
}

}  // namespace longspan::cache
