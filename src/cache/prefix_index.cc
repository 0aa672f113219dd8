#include "cache/prefix_index.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace longspan::cache {
namespace {

// Only the index uses it. A page may be in two nodes: partly filled in one, full in the other.
bool is_evictable(const Page& page) { return page.pool()->is_reclaimable(page.id()); }

}  // namespace

PrefixIndex::PrefixIndex(const PrefixIndexOptions& options)
    : options_(options),
      num_partial_at_(static_cast<size_t>(options.page_tokens), 0),
      leaves_(options.max_nodes),
      parents_(options.max_nodes),
      states_(options.max_nodes) {
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
    const int64_t begin = node_at(node).end;
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
      if (options_.needs_state && !node_at(child).state) continue;
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
  for (const int32_t index : hit.path) hit.pages.push_back(node_at(index).page.share());
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
  file_news();                              // now: later it might file a node that is about to be a parent
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
  if (node >= 0 && state && node_at(node).parent >= 0) set_state(node, std::move(state));
}

int32_t PrefixIndex::take_slot() {
  if (free_.empty() && std::ssize(nodes_) < options_.max_nodes) {
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size() - 1);
  }
  if (free_.empty()) {
    const int32_t leaf = oldest_page(leaves_);
    if (leaf < 0) return -1;  // all in use: what is new is not remembered
    remove_node(leaf);
  }
  const int32_t index = free_.back();
  free_.pop_back();
  return index;
}

int32_t PrefixIndex::add_root(std::string_view salt) {
  const int32_t index = take_slot();
  if (index < 0) return -1;
  Node& root = node_at(index);
  root = Node{};
  root.salt = salt;
  roots_.emplace(root.salt, index);
  return index;
}

int32_t PrefixIndex::add_node(int32_t parent, PrefixKey key, std::span<const int32_t> tokens,
                              const Page& page) {
  leaves_.erase(parent);  // so that the parent is not who makes room
  const int32_t index = take_slot();
  if (index < 0) {
    drop_empty_root(parent);
    if (node_at(parent).page) file_page(parent);
    return -1;
  }
  Node& node = node_at(index);
  node = Node{};
  node.key = key;
  node.end = node_at(parent).end + std::ssize(tokens);
  node.tokens.assign(tokens.begin(), tokens.end());
  node.page = page.share();
  node.used_at = ++clock_;
  add_child(parent, index);
  link_page(index);
  if (std::ssize(tokens) < options_.page_tokens) ++num_partial_at_[tokens.size()];
  by_key_.emplace(key, index);
  ++stats_.num_nodes;
  return index;
}

void PrefixIndex::add_child(int32_t parent, int32_t child) {
  Node& node = node_at(child);
  node.parent = parent;
  node.next_sibling = node_at(parent).first_child;
  if (node.next_sibling >= 0) node_at(node.next_sibling).prev_sibling = child;
  node_at(parent).first_child = child;
  if (node_at(parent).page) file_page(parent);  // it is no leaf any more
}

void PrefixIndex::drop_child(int32_t parent, int32_t child) {
  const Node& node = node_at(child);
  if (node.next_sibling >= 0) node_at(node.next_sibling).prev_sibling = node.prev_sibling;
  (node.prev_sibling >= 0 ? node_at(node.prev_sibling).next_sibling : node_at(parent).first_child) =
      node.next_sibling;
  drop_empty_root(parent);
  if (node_at(parent).page) file_page(parent);  // it may be a leaf now
}

void PrefixIndex::drop_empty_root(int32_t index) {
  Node& node = node_at(index);
  if (node.first_child >= 0 || node.parent >= 0) return;
  roots_.erase(node.salt);  // a salt that nothing is known of any more
  node = Node{};
  free_.push_back(index);
}

// ---- Which node has which page.

void PrefixIndex::link_page(int32_t index) {
  Node& node = node_at(index);
  PagePool* pool = node.page.pool();
  if (kv_pool_ == nullptr) {
    kv_pool_ = pool;
    node_of_page_.assign(static_cast<size_t>(pool->num_pages()), -1);
  }
  CHECK_MSG(pool == kv_pool_, "[prefix index] pages of two pools");
  int32_t& head = node_of_page_[static_cast<size_t>(node.page.id())];
  node.next_of_page = std::exchange(head, index);
  pool->add_index_use(node.page.id());
}

void PrefixIndex::unlink_page(int32_t index) {
  const Node& node = node_at(index);
  int32_t* at = &node_of_page_[static_cast<size_t>(node.page.id())];
  while (*at != index) at = &node_at(*at).next_of_page;  // two or three at most
  *at = node.next_of_page;
  kv_pool_->drop_index_use(node.page.id());
}

void PrefixIndex::set_state(int32_t index, StateSlot state) {
  Node& node = node_at(index);
  if (node.state) return;
  node.state = std::move(state);
  node.state_used_at = ++clock_;
  for (const Page& page : node.state.pages) {
    if (state_pool_ == nullptr) {
      state_pool_ = page.pool();
      node_of_state_.assign(static_cast<size_t>(state_pool_->num_pages()), -1);
    }
    CHECK_MSG(page.pool() == state_pool_, "[prefix index] states of two pools");
    node_of_state_[static_cast<size_t>(page.id())] = index;
    state_pool_->add_index_use(page.id());
  }
  ++stats_.num_states;
}

void PrefixIndex::drop_state(int32_t index) {
  Node& node = node_at(index);
  if (!node.state) return;
  states_.erase(index);
  for (const Page& page : node.state.pages) {
    node_of_state_[static_cast<size_t>(page.id())] = -1;
    state_pool_->drop_index_use(page.id());
  }
  node.state = {};
  --stats_.num_states;
}

// ---- Eviction.

void PrefixIndex::file_page(int32_t index) {
  const Node& node = node_at(index);
  AgeOrder& own = node.first_child < 0 ? leaves_ : parents_;
  (node.first_child < 0 ? parents_ : leaves_).erase(index);
  if (is_evictable(node.page)) own.put(index, node.used_at);
}

void PrefixIndex::file_state(int32_t index) {
  const Node& node = node_at(index);
  if (std::ranges::all_of(node.state.pages, is_evictable)) states_.put(index, node.state_used_at);
}

void PrefixIndex::file_news() {
  const auto file = [this](const PagePool* pool, int32_t id) {
    const auto at = static_cast<size_t>(id);
    if (pool == kv_pool_)
      for (int32_t index = node_of_page_[at]; index >= 0; index = node_at(index).next_of_page)
        file_page(index);
    if (pool == state_pool_ && node_of_state_[at] >= 0) file_state(node_of_state_[at]);
  };
  for (PagePool* pool : {kv_pool_, state_pool_})
    if (pool != nullptr) pool->take_newly_reclaimable([&](int32_t id) { file(pool, id); });
}

// What is in use again is filed anew when it comes back.
int32_t PrefixIndex::oldest_page(AgeOrder& order) {
  while (!order.empty() && !is_evictable(node_at(order.oldest()).page)) order.erase(order.oldest());
  return order.oldest();
}

int32_t PrefixIndex::oldest_state(const PagePool& pool) {
  if (&pool != state_pool_) return -1;
  while (!states_.empty() && !std::ranges::all_of(node_at(states_.oldest()).state.pages, is_evictable))
    states_.erase(states_.oldest());
  return states_.oldest();
}

bool PrefixIndex::evict(const PagePool& pool) {
  const int32_t before = pool.num_free();
  while (evict_one(pool))
    if (pool.num_free() > before) return true;
  return false;
}

bool PrefixIndex::evict_state(const PagePool& pool) {
  const int32_t before = pool.num_free();
  while (pool.num_free() == before) {
    file_news();
    const int32_t state = oldest_state(pool);
    if (state < 0) return false;
    forget_state(state);
  }
  return true;
}

// A partly filled page is of no use without its state.
void PrefixIndex::forget_state(int32_t index) {
  const bool is_partial = std::ssize(node_at(index).tokens) < options_.page_tokens;
  is_partial ? remove_node(index) : drop_state(index);
  ++stats_.num_evicted_states;
}

bool PrefixIndex::evict_one(const PagePool& pool) {
  file_news();
  const int32_t state = oldest_state(pool);
  int32_t page = &pool == kv_pool_ ? oldest_page(leaves_) : -1;
  // No leaf, but perhaps a parent of pages that sequences use: they keep theirs, the index forgets them all.
  if (page < 0 && state < 0 && &pool == kv_pool_) page = oldest_page(parents_);
  if (state < 0 && page < 0) return false;
  if (state >= 0 && (page < 0 || node_at(state).state_used_at < node_at(page).used_at)) {
    forget_state(state);
  } else {
    remove_subtree(page);
    ++stats_.num_evicted_pages;
  }
  return true;
}

void PrefixIndex::remove_node(int32_t index) {
  Node& node = node_at(index);
  CHECK_MSG(node.first_child < 0, "[prefix index] a node with children removed");
  drop_state(index);
  leaves_.erase(index);
  parents_.erase(index);
  unlink_page(index);
  if (std::ssize(node.tokens) < options_.page_tokens) --num_partial_at_[node.tokens.size()];
  const auto [first, last] = by_key_.equal_range(node.key);
  by_key_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == index; }));
  --stats_.num_nodes;
  drop_child(node.parent, index);
  node = Node{};
  free_.push_back(index);
}

void PrefixIndex::remove_subtree(int32_t top) {
  for (int32_t index = top;;) {
    while (node_at(index).first_child >= 0) index = node_at(index).first_child;
    const int32_t parent = node_at(index).parent;
    remove_node(index);
    if (index == top) return;
    index = parent;
  }
}

void PrefixIndex::clear() {
  while (!roots_.empty()) remove_subtree(node_at(roots_.begin()->second).first_child);
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
  Node& node = node_at(index);
  node.used_at = ++clock_;
  for (AgeOrder* order : {&leaves_, &parents_})
    if (order->contains(index)) order->put(index, node.used_at);
}

void PrefixIndex::touch_state(int32_t index) {
  Node& node = node_at(index);
  if (!node.state) return;
  node.state_used_at = ++clock_;
  if (states_.contains(index)) states_.put(index, node.state_used_at);
}

}  // namespace longspan::cache
