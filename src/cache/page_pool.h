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
  int32_t use_count(int32_t id) const { return entries_[static_cast<size_t>(id)].use_count; }

  int32_t num_pages() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t max_pinned() const { return max_pinned_; }
  PoolStats stats() const;

 private:
  friend class Page;
  struct Entry {
    int32_t use_count = 0;
    bool pinned = false;
  };
  void add_use(int32_t id);
  void drop_use(int32_t id);

  std::vector<Entry> entries_;  // [num_pages]
  std::vector<int32_t> free_;   // a stack: the page freed last is the warmest
  int32_t max_pinned_ = 0;
  int32_t num_pinned_ = 0;
  int32_t max_used_ = 0;
  int64_t num_allocations_ = 0;
  int64_t num_refusals_ = 0;
};

}  // namespace longspan::cache
