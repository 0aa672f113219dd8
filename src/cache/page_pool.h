// PagePool: which pages of a pool are free, and how many hold each used one. The memory itself lives
// elsewhere. Not thread-safe: the engine thread owns it. A pool outlives its handles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace longspan::cache {

class PagePool;

// One use of a page. Moving hands it over, share() adds one, destroying drops it; the last one frees the
// page.
class Page {
 public:
  Page() = default;
  Page(Page&& other) noexcept;
  Page& operator=(Page&& other) noexcept;
  ~Page() { reset(); }

  Page share() const;
  void reset();
  explicit operator bool() const { return pool_ != nullptr; }
  int32_t id() const { return id_; }  // 0 .. num_pages - 1; -1 when empty
  int32_t use_count() const;          // 0 when empty
  PagePool* pool() const { return pool_; }

 private:
  friend class PagePool;
  Page(PagePool* pool, int32_t id) : pool_(pool), id_(id) {}

  PagePool* pool_ = nullptr;
  int32_t id_ = -1;
};

std::vector<Page> share(std::span<const Page> pages);  // one more use of each

struct PoolStats {
  int32_t num_pages = 0;
  int32_t num_free = 0;
  int32_t num_pinned = 0;
  int32_t max_used = 0;  // high-water mark
  int64_t num_allocations = 0;
  int64_t num_refusals = 0;  // allocate() on an empty pool
};

class PagePool {
 public:
  // At most max_pinned pages can be pinned at a time, so that num_pages - max_pinned always come back.
  explicit PagePool(int32_t num_pages, int32_t max_pinned = 0);
  ~PagePool();  // CHECKs that every page is back
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  std::optional<Page> allocate();  // O(1); empty when the pool is
  // A pinned page is never evicted from the prefix index. False when the limit is reached.
  bool pin(int32_t id);
  void unpin(int32_t id);
  bool is_pinned(int32_t id) const { return entries_[static_cast<size_t>(id)].pinned; }
  // The prefix index says which uses are its own: a page without others comes back when it is asked for.
  // Counted at every change, so that asking costs nothing.
  void add_index_use(int32_t id);
  void drop_index_use(int32_t id);
  bool is_reclaimable(int32_t id) const;  // in use, by the index alone, and not pinned
  int32_t num_reclaimable() const { return num_reclaimable_; }
  // visit(id) for each page that has become reclaimable since the last call, once; it may be no more.
  template <class Visit>
  void take_newly_reclaimable(Visit&& visit) {
    for (const int32_t id : newly_reclaimable_) {
      entries_[static_cast<size_t>(id)].listed = false;
      visit(id);
    }
    newly_reclaimable_.clear();
  }
  int32_t use_count(int32_t id) const { return entries_[static_cast<size_t>(id)].use_count; }

  int32_t num_pages() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t max_pinned() const { return max_pinned_; }
  PoolStats stats() const;

 private:
  friend class Page;
  struct Entry {
    int32_t use_count = 0;
    int32_t index_uses = 0;  // of them, those of the prefix index
    bool pinned = false;
    bool listed = false;  // in newly_reclaimable_

    bool is_reclaimable() const { return use_count > 0 && use_count == index_uses && !pinned; }
  };
  void add_use(int32_t id);
  void drop_use(int32_t id);
  // Applies `change` to the entry and keeps what is known of reclaimable pages true.
  template <class Change>
  void update(int32_t id, const Change& change);

  std::vector<Entry> entries_;  // [num_pages]
  std::vector<int32_t> free_;   // a stack: the page freed last is the warmest
  std::vector<int32_t> newly_reclaimable_;
  int32_t max_pinned_ = 0;
  int32_t num_pinned_ = 0;
  int32_t num_reclaimable_ = 0;
  int32_t max_used_ = 0;
  int64_t num_allocations_ = 0;
  int64_t num_refusals_ = 0;
};

}  // namespace longspan::cache
