#include "cache/prefix_index.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/error.h"

namespace longspan::cache {
namespace {

// Only the index uses it. A page may be in two nodes: partly filled in one, full in the other.
bool is_evictable(const Page& page) { return page.pool()->is_reclaimable(page.id()); }

}  // namespace

PrefixIndex::PrefixIndex(const PrefixIndexOptions& options)
    : options_(options), num_partial_at_(static_cast<size_t>(options.page_tokens), 0) {
  CHECK_MSG(options.page_tokens > 0 && options.max_nodes > 0, "[prefix index] page {}, max_nodes {}",
            options.page_tokens, options.max_nodes);
}

// ---- Lookup.

PrefixHit PrefixIndex::find(std::string_view salt, std::span<const int32_t> tokens, int64_t limit) const {
  const int64_t page = options_.page_tokens;
  limit = std::min(limit, static_cast<int64_t>(tokens.size()));
  PrefixHit hit;
  if (limit < options_.min_boundary) hit.miss = PrefixMiss::kTooShort;

  int32_t node = find_root(salt);
  std::vector<int32_t> path;
  TokenHasher hasher(salt);
  size_t best_depth = 0;  // nodes of the path that the best boundary needs
  int32_t best_partial = -1;
  while (node >= 0) {
    const int64_t begin = nodes_[static_cast<size_t>(node)].end;
    const int64_t end = std::min(begin + page, limit);
    int32_t full_child = -1;
    for (int64_t boundary = begin; boundary < end;) {
      const int64_t next = next_boundary(boundary, begin, end);
      if (next > end) break;
      hasher.push(tokens.subspan(static_cast<size_t>(boundary), static_cast<size_t>(next - boundary)));
      boundary = next;
      const int32_t child = find_child(node, narrow_key(hasher.key()), between(tokens, begin, next));
      if (child < 0) continue;
      if (next == begin + page) full_child = child;
      if (options_.needs_state && !nodes_[static_cast<size_t>(child)].state) continue;
      best_partial = next == begin + page ? -1 : child;
      best_depth = path.size() + (next == begin + page ? 1 : 0);
      hit.num_tokens = next;
    }
    if (full_child >= 0) path.push_back(full_child);
    node = full_child;
  }

  if (hit.num_tokens == 0) {
    if (hit.miss != PrefixMiss::kTooShort) hit.miss = path.empty() ? PrefixMiss::kNoKv : PrefixMiss::kNoState;
    return hit;
  }
  path.resize(best_depth);
  if (best_partial >= 0) path.push_back(best_partial);
  hold(hit, std::move(path), best_partial >= 0);
  return hit;
}

// The next token count after `from` at which some node under a parent that ends at `begin` may end.
int64_t PrefixIndex::next_boundary(int64_t from, int64_t begin, int64_t end) const {
  for (int64_t next = from + 1; next <= end; ++next) {
    const int64_t offset = next - begin;
    if (offset == options_.page_tokens || num_partial_at_[static_cast<size_t>(offset)] > 0) return next;
  }
  return end + 1;
}

void PrefixIndex::hold(PrefixHit& hit, std::vector<int32_t> path, bool last_is_partial) const {
  hit.miss = PrefixMiss::kNone;
  hit.path = std::move(path);
  for (const int32_t index : hit.path) hit.pages.push_back(nodes_[static_cast<size_t>(index)].page.share());
  if (last_is_partial) {
    hit.partial = std::move(hit.pages.back());
    hit.pages.pop_back();
  }
  hit.state = nodes_[static_cast<size_t>(hit.path.back())].state.share();
}

void PrefixIndex::use(const PrefixHit& hit, int64_t num_queried_tokens) {
  ++stats_.num_lookups;
  stats_.num_queried_tokens += num_queried_tokens;
  stats_.num_hit_tokens += hit.num_tokens;
  switch (hit.miss) {
    case PrefixMiss::kNone:
      ++stats_.num_hits;
      break;
    case PrefixMiss::kTooShort:
      ++stats_.num_miss_too_short;
      break;
    case PrefixMiss::kNoKv:
      ++stats_.num_miss_no_kv;
      break;
    case PrefixMiss::kNoState:
      ++stats_.num_miss_no_state;
      break;
  }
  if (hit.path.empty()) return;
  // Leaf first, so that the root ends up the most recent: a parent is of more use than its children.
  for (auto index = hit.path.rbegin(); index != hit.path.rend(); ++index) touch(*index);
  touch_state(hit.path.back());  // the states on the way were of no use: let them grow old
}

// ---- Insertion.

void PrefixIndex::insert(std::string_view salt, std::span<const int32_t> tokens, std::span<const Page> pages,
                         StateSlot state) {
  const int64_t page = options_.page_tokens;
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  CHECK_MSG(!state || state.num_tokens == num_tokens, "[prefix index] a state of {} tokens, need {}",
            state.num_tokens, num_tokens);
  CHECK_MSG(std::ssize(pages) * page >= num_tokens || num_tokens % page != 0,
            "[prefix index] {} pages for {} tokens", pages.size(), num_tokens);
  if (num_tokens < page && !state) return;  // nothing to keep: no root for it either
  TokenHasher hasher(salt);
  int32_t node = find_root(salt);
  if (node < 0) node = add_root(salt);
  for (int64_t begin = 0; node >= 0 && begin < num_tokens; begin += page) {
    const int64_t end = std::min(begin + page, num_tokens);
    const bool is_partial = end - begin < page;
    if (is_partial && !state) break;  // KV alone is of no use short of a page's end
    const std::span<const int32_t> segment = between(tokens, begin, end);
    hasher.push(segment);
    const PrefixKey key = narrow_key(hasher.key());
    const int32_t known = find_child(node, key, segment);
    node = known >= 0 ? known : add_node(node, key, segment, pages[static_cast<size_t>(begin / page)]);
  }
  if (node >= 0 && state && nodes_[static_cast<size_t>(node)].parent >= 0) set_state(node, std::move(state));
}

int32_t PrefixIndex::take_slot() {
  if (free_.empty() && std::ssize(nodes_) < options_.max_nodes) {
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size() - 1);
  }
  if (free_.empty()) {
    const auto leaf = oldest_leaf();
    if (leaf == page_order_.end()) return -1;  // all in use: what is new is not remembered
    remove_node(*leaf);
  }
  const int32_t index = free_.back();
  free_.pop_back();
  return index;
}

int32_t PrefixIndex::add_root(std::string_view salt) {
  const int32_t index = take_slot();
  if (index < 0) return -1;
  Node& root = nodes_[static_cast<size_t>(index)];
  root = Node{};
  root.salt = salt;
  roots_.emplace(root.salt, index);
  return index;
}

int32_t PrefixIndex::add_node(int32_t parent, PrefixKey key, std::span<const int32_t> tokens,
                              const Page& page) {
  ++nodes_[static_cast<size_t>(parent)].num_children;  // first, so that the parent is not who makes room
  const int32_t index = take_slot();
  if (index < 0) {
    drop_child(parent);
    return -1;
  }
  Node& node = nodes_[static_cast<size_t>(index)];
  node = Node{};
  node.parent = parent;
  node.key = key;
  node.end = nodes_[static_cast<size_t>(parent)].end + std::ssize(tokens);
  node.tokens.assign(tokens.begin(), tokens.end());
  node.page = page.share();
  if (kv_pool_ == nullptr) kv_pool_ = page.pool();
  CHECK_MSG(page.pool() == kv_pool_, "[prefix index] pages of two pools");
  page.pool()->add_index_use(page.id());
  node.order = page_order_.insert(page_order_.end(), index);
  node.used_at = ++clock_;
  if (std::ssize(tokens) < options_.page_tokens) ++num_partial_at_[tokens.size()];
  by_key_.emplace(key, index);
  ++stats_.num_nodes;
  return index;
}

void PrefixIndex::set_state(int32_t index, StateSlot state) {
  Node& node = nodes_[static_cast<size_t>(index)];
  if (node.state) return;
  node.state = std::move(state);
  for (const Page& page : node.state.pages) page.pool()->add_index_use(page.id());
  node.state_order = state_order_.insert(state_order_.end(), index);
  node.state_used_at = ++clock_;
  ++stats_.num_states;
}

// ---- Eviction.

bool PrefixIndex::evict(const PagePool& pool) {
  const int32_t before = pool.num_free();
  while (evict_one(pool))
    if (pool.num_free() > before) return true;
  return false;
}

std::list<int32_t>::iterator PrefixIndex::oldest_leaf() {
  return std::find_if(page_order_.begin(), page_order_.end(), [&](int32_t index) {
    const Node& node = nodes_[static_cast<size_t>(index)];
    return node.num_children == 0 && is_evictable(node.page);
  });
}

std::list<int32_t>::iterator PrefixIndex::oldest_state(const PagePool& pool) {
  return std::find_if(state_order_.begin(), state_order_.end(), [&](int32_t index) {
    const std::vector<Page>& pages = nodes_[static_cast<size_t>(index)].state.pages;
    return pages.front().pool() == &pool && std::ranges::all_of(pages, is_evictable);
  });
}

bool PrefixIndex::evict_state(const PagePool& pool) {
  const int32_t before = pool.num_free();
  while (pool.num_free() == before) {
    const auto state = oldest_state(pool);
    if (state == state_order_.end()) return false;
    forget_state(*state);
  }
  return true;
}

// A partly filled page is of no use without its state.
void PrefixIndex::forget_state(int32_t index) {
  const bool is_partial = std::ssize(nodes_[static_cast<size_t>(index)].tokens) < options_.page_tokens;
  is_partial ? remove_node(index) : drop_state(index);
  ++stats_.num_evicted_states;
}

bool PrefixIndex::evict_one(const PagePool& pool) {
  const auto state = oldest_state(pool);
  auto oldest = &pool == kv_pool_ ? oldest_leaf() : page_order_.end();
  const bool has_state = state != state_order_.end();
  // No leaf, but perhaps a parent of pages that sequences use: they keep theirs, the index forgets them all.
  if (oldest == page_order_.end() && !has_state && &pool == kv_pool_)
    oldest = std::find_if(page_order_.begin(), page_order_.end(), [&](int32_t index) {
      return is_evictable(nodes_[static_cast<size_t>(index)].page);
    });
  const bool has_page = oldest != page_order_.end();
  if (!has_state && !has_page) return false;
  if (has_state && (!has_page || nodes_[static_cast<size_t>(*state)].state_used_at <
                                     nodes_[static_cast<size_t>(*oldest)].used_at)) {
    forget_state(*state);
  } else {
    remove_subtree(*oldest);
    ++stats_.num_evicted_pages;
  }
  return true;
}

void PrefixIndex::drop_state(int32_t index) {
  Node& node = nodes_[static_cast<size_t>(index)];
  if (!node.state) return;
  state_order_.erase(node.state_order);
  for (const Page& page : node.state.pages) page.pool()->drop_index_use(page.id());
  node.state = {};
  --stats_.num_states;
}

void PrefixIndex::remove_node(int32_t index) {
  Node& node = nodes_[static_cast<size_t>(index)];
  CHECK_MSG(node.num_children == 0, "[prefix index] node with {} children removed", node.num_children);
  drop_state(index);
  page_order_.erase(node.order);
  node.page.pool()->drop_index_use(node.page.id());
  if (std::ssize(node.tokens) < options_.page_tokens) --num_partial_at_[node.tokens.size()];
  const auto [first, last] = by_key_.equal_range(node.key);
  by_key_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == index; }));
  --stats_.num_nodes;
  const int32_t parent = node.parent;
  node = Node{};
  free_.push_back(index);

  drop_child(parent);
}

void PrefixIndex::drop_child(int32_t parent) {
  Node& node = nodes_[static_cast<size_t>(parent)];
  if (--node.num_children > 0 || node.parent >= 0) return;
  roots_.erase(node.salt);  // a salt that nothing is known of any more
  node = Node{};
  free_.push_back(parent);
}

void PrefixIndex::remove_subtree(int32_t top) {
  std::vector<int32_t> doomed;
  if (nodes_[static_cast<size_t>(top)].num_children > 0) {
    for (const int32_t index : page_order_) {
      int32_t above = nodes_[static_cast<size_t>(index)].parent;
      while (above >= 0 && above != top) above = nodes_[static_cast<size_t>(above)].parent;
      if (above == top) doomed.push_back(index);
    }
    std::ranges::sort(doomed, std::greater<>(),
                      [&](int32_t index) { return nodes_[static_cast<size_t>(index)].end; });
  }
  for (const int32_t index : doomed) remove_node(index);
  remove_node(top);
}

void PrefixIndex::clear() {
  while (!page_order_.empty()) {
    const auto leaf = std::find_if(page_order_.begin(), page_order_.end(), [&](int32_t index) {
      return nodes_[static_cast<size_t>(index)].num_children == 0;
    });
    remove_node(*leaf);
  }
}

// ---- Pins.

bool PrefixIndex::pin(std::string_view salt, std::span<const int32_t> tokens) {
  const PrefixHit hit = find(salt, tokens, std::ssize(tokens));
  std::vector<const Page*> done;
  const auto pin_one = [&](const Page& page) {
    if (!page || page.pool()->is_pinned(page.id())) return true;
    if (!page.pool()->pin(page.id())) return false;
    done.push_back(&page);
    return true;
  };
  bool all = hit.num_tokens > 0 && pin_one(hit.partial);
  for (const Page& page : hit.pages) all = all && pin_one(page);
  for (const Page& page : hit.state.pages) all = all && pin_one(page);
  if (all) return true;
  for (const Page* page : done) page->pool()->unpin(page->id());
  return false;
}

void PrefixIndex::unpin(std::string_view salt, std::span<const int32_t> tokens) {
  const PrefixHit hit = find(salt, tokens, std::ssize(tokens));
  if (hit.partial) hit.partial.pool()->unpin(hit.partial.id());
  for (const Page& page : hit.pages) page.pool()->unpin(page.id());
  for (const Page& page : hit.state.pages) page.pool()->unpin(page.id());
}

// ---- Small parts.

std::span<const int32_t> PrefixIndex::between(std::span<const int32_t> tokens, int64_t begin, int64_t end) {
  return tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

PrefixKey PrefixIndex::narrow_key(PrefixKey key) const {
  if (options_.key_bits >= 128) return key;
  return {.low = options_.key_bits <= 0 ? 0 : key.low >> (64 - std::min(options_.key_bits, 64)), .high = 0};
}

int32_t PrefixIndex::find_root(std::string_view salt) const {
  const auto root = roots_.find(salt);
  return root == roots_.end() ? -1 : root->second;
}

int32_t PrefixIndex::find_child(int32_t parent, PrefixKey key, std::span<const int32_t> tokens) const {
  const auto [first, last] = by_key_.equal_range(key);
  for (auto entry = first; entry != last; ++entry) {
    const Node& node = nodes_[static_cast<size_t>(entry->second)];
    if (node.parent == parent && std::ranges::equal(node.tokens, tokens)) return entry->second;
  }
  return -1;
}

void PrefixIndex::touch(int32_t index) {
  Node& node = nodes_[static_cast<size_t>(index)];
  page_order_.splice(page_order_.end(), page_order_, node.order);
  node.used_at = ++clock_;
}

void PrefixIndex::touch_state(int32_t index) {
  Node& node = nodes_[static_cast<size_t>(index)];
  if (!node.state) return;
  state_order_.splice(state_order_.end(), state_order_, node.state_order);
  node.state_used_at = ++clock_;
}

}  // namespace longspan::cache
