#include "cache/page_pool.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace longspan::cache {

Page::Page(Page&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, -1)) {}

Page& Page::operator=(Page&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = std::exchange(other.id_, -1);
  }
  return *this;
}

Page Page::share() const {
  if (pool_ == nullptr) return {};
  pool_->add_use(id_);
  return Page(pool_, id_);
}

void Page::reset() {
  if (pool_ == nullptr) return;
  pool_->drop_use(id_);
  pool_ = nullptr;
  id_ = -1;
}

int32_t Page::use_count() const { return pool_ == nullptr ? 0 : pool_->use_count(id_); }

std::vector<Page> share(std::span<const Page> pages) {
  std::vector<Page> copy;
  copy.reserve(pages.size());
  for (const Page& page : pages) copy.push_back(page.share());
  return copy;
}

PagePool::PagePool(int32_t num_pages, int32_t max_pinned)
    : entries_(static_cast<size_t>(num_pages)), max_pinned_(std::min(max_pinned, num_pages)) {
  free_.reserve(entries_.size());
  newly_reclaimable_.reserve(entries_.size());
  for (int32_t id = num_pages - 1; id >= 0; --id) free_.push_back(id);
}

PagePool::~PagePool() {
  CHECK_MSG(free_.size() == entries_.size(), "[page pool] {} of {} pages still in use at the end",
            entries_.size() - free_.size(), entries_.size());
}

std::optional<Page> PagePool::allocate() {
  if (free_.empty()) {
    ++num_refusals_;
    return std::nullopt;
  }
  const int32_t id = free_.back();
  free_.pop_back();
  entries_[static_cast<size_t>(id)].use_count = 1;
  ++num_allocations_;
  max_used_ = std::max(max_used_, num_pages() - num_free());
  return Page(this, id);
}

template <class Change>
void PagePool::update(int32_t id, const Change& change) {
  Entry& entry = entries_[static_cast<size_t>(id)];
  num_reclaimable_ -= entry.is_reclaimable();
  const bool was_reclaimable = entry.is_reclaimable();
  change(entry);
  num_reclaimable_ += entry.is_reclaimable();
  if (was_reclaimable || !entry.is_reclaimable() || entry.listed) return;
  entry.listed = true;
  newly_reclaimable_.push_back(id);
}

bool PagePool::pin(int32_t id) {
  const Entry& entry = entries_[static_cast<size_t>(id)];
  CHECK_MSG(entry.use_count > 0, "[page pool] pin of free page {}", id);
  if (entry.pinned) return true;
  if (num_pinned_ == max_pinned_) return false;
  update(id, [](Entry& e) { e.pinned = true; });
  ++num_pinned_;
  return true;
}

void PagePool::unpin(int32_t id) {
  if (!is_pinned(id)) return;
  update(id, [](Entry& e) { e.pinned = false; });
  --num_pinned_;
}

bool PagePool::is_reclaimable(int32_t id) const { return entries_[static_cast<size_t>(id)].is_reclaimable(); }

void PagePool::add_index_use(int32_t id) {
  update(id, [](Entry& e) { ++e.index_uses; });
}

void PagePool::drop_index_use(int32_t id) {
  update(id, [](Entry& e) { --e.index_uses; });
}

void PagePool::add_use(int32_t id) {
  update(id, [](Entry& e) { ++e.use_count; });
}

void PagePool::drop_use(int32_t id) {
  CHECK_MSG(use_count(id) > 0, "[page pool] page {} freed twice", id);
  update(id, [](Entry& e) {
    --e.use_count;
    e.index_uses = std::min(e.index_uses, e.use_count);  // the index itself goes
  });
  if (use_count(id) > 0) return;
  unpin(id);
  free_.push_back(id);
}

PoolStats PagePool::stats() const {
  return {.num_pages = num_pages(),
          .num_free = num_free(),
          .num_pinned = num_pinned_,
          .max_used = max_used_,
          .num_allocations = num_allocations_,
          .num_refusals = num_refusals_};
}

}  // namespace longspan::cache
