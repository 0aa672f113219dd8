// PrefixIndex: what earlier prompts left in the cache, found again by content. A tree of pages: a node is one
// page of tokens after its parent's, holds its KV page and perhaps a checkpoint of the recurrent state at its
// end. A hit is the longest boundary that has both. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/age_order.h"
#include "cache/page_pool.h"
#include "cache/state_slot.h"
#include "cache/token_hash.h"

namespace longspan::cache {

enum class PrefixMiss : uint8_t {
  kNone,      // a hit
  kTooShort,  // no boundary below the limit: nothing could have been found
  kNoKv,      // the first page is unknown
  kNoState,   // pages are known, but no checkpoint of the state at any of their ends
};

struct PrefixHit {
  int64_t num_tokens = 0;   // resume here; 0 on a miss
  std::vector<Page> pages;  // full pages of tokens 0 .. num_tokens; shared, never written again
  Page partial;             // holds the last num_tokens % page_tokens tokens; copy it, do not write to it
  StateSlot state;          // copy it; empty in a dense model
  PrefixMiss miss = PrefixMiss::kNoKv;
  std::vector<int32_t> path;  // the index's own: nodes from the root, alive while the hit is held
};

struct PrefixStats {
  int64_t num_lookups = 0;
  int64_t num_hits = 0;
  int64_t num_miss_too_short = 0;
  int64_t num_miss_no_kv = 0;
  int64_t num_miss_no_state = 0;
  int64_t num_queried_tokens = 0;
  int64_t num_hit_tokens = 0;
  int64_t num_evicted_pages = 0;
  int64_t num_evicted_states = 0;
  int32_t num_nodes = 0;
  int32_t num_states = 0;
};

struct PrefixIndexOptions {
  int64_t page_tokens = 0;
  bool needs_state = true;   // false: dense model, every page boundary is a hit
  int64_t min_boundary = 1;  // tokens; the smallest boundary anyone inserts, to tell kTooShort from kNoKv
  int32_t max_nodes = 0;     // limit of the index's own size; the oldest leaf makes room for what is new
  int key_bits = 128;        // fewer only to provoke collisions in tests
};

class PrefixIndex {
 public:
  explicit PrefixIndex(const PrefixIndexOptions& options);

  // The longest known prefix of `tokens` of at most `limit` tokens, under the same salt. Tokens are compared,
  // a colliding key is a miss. Holds what it returns; changes nothing.
  PrefixHit find(std::string_view salt, std::span<const int32_t> tokens, int64_t limit) const;
  // The hit (or miss) is taken: counts it and makes what it used the most recently used.
  void use(const PrefixHit& hit, int64_t num_queried_tokens);

  // Remember that `pages` hold the KV of `tokens` (full pages only), and `state`, if given, the state after
  // all of them. Between page boundaries a state takes the partly filled page along. What is known
  // already stays.
  void insert(std::string_view salt, std::span<const int32_t> tokens, std::span<const Page> pages,
              StateSlot state = {});

  // Frees at least one page of `pool` by forgetting the least recently used checkpoint or leaf whose pages
  // nobody else uses or has pinned. False when there is none.
  bool evict(const PagePool& pool);
  // The same of checkpoints alone: what KV is known stays known.
  bool evict_state(const PagePool& pool);

  // Keep what find() returns for these tokens until unpin(). False when the pool's pin limit is reached.
  bool pin(std::string_view salt, std::span<const int32_t> tokens);
  void unpin(std::string_view salt, std::span<const int32_t> tokens);

  void clear();
  const PrefixStats& stats() const { return stats_; }

 private:
  struct Node {
    int32_t parent = -1;       // -1: a root, one for each salt
    int32_t first_child = -1;  // of a list in which each has the next and the one before
    int32_t next_sibling = -1;
    int32_t prev_sibling = -1;
    int32_t next_of_page = -1;  // another node with the same page
    PrefixKey key;
    int64_t end = 0;              // tokens from the start of the prompt to the end of this node
    std::vector<int32_t> tokens;  // those after the parent's: page_tokens of them, or fewer in a partial node
    std::string salt;             // roots only
    Page page;
    StateSlot state;
    uint64_t used_at = 0;
    uint64_t state_used_at = 0;
  };
  struct KeyHash {
    size_t operator()(const PrefixKey& key) const { return static_cast<size_t>(key.low ^ key.high); }
  };

  static std::span<const int32_t> between(std::span<const int32_t> tokens, int64_t begin, int64_t end);
  PrefixKey narrow_key(PrefixKey key) const;
  int32_t find_root(std::string_view salt) const;
  int32_t find_child(int32_t parent, PrefixKey key, std::span<const int32_t> tokens) const;
  int64_t next_boundary(int64_t from, int64_t begin, int64_t end) const;
  void hold(PrefixHit& hit, std::vector<int32_t> path, bool last_is_partial) const;
  Node& node_at(int32_t index) { return nodes_[static_cast<size_t>(index)]; }
  const Node& node_at(int32_t index) const { return nodes_[static_cast<size_t>(index)]; }
  int32_t take_slot();  // -1 when max_nodes are in use by sequences
  int32_t add_root(std::string_view salt);
  int32_t add_node(int32_t parent, PrefixKey key, std::span<const int32_t> tokens, const Page& page);
  void remove_node(int32_t index);
  void remove_subtree(int32_t top);
  void add_child(int32_t parent, int32_t child);
  void drop_child(int32_t parent, int32_t child);
  void drop_empty_root(int32_t index);
  void link_page(int32_t index);
  void unlink_page(int32_t index);
  void set_state(int32_t index, StateSlot state);
  void drop_state(int32_t index);
  void touch(int32_t index);
  void touch_state(int32_t index);
  void file_page(int32_t index);               // among the leaves or the parents that can go, where it can
  void file_state(int32_t index);              // among the states that can go, likewise
  void file_news();                            // what sequences gave back since the last look
  int32_t oldest_page(AgeOrder& order);        // that is evictable; -1: none
  int32_t oldest_state(const PagePool& pool);  // likewise
  bool evict_one(const PagePool& pool);
  void forget_state(int32_t index);

  PrefixIndexOptions options_;
  std::vector<Node> nodes_;  // slots; free_ lists the unused ones
  std::vector<int32_t> free_;
  std::unordered_multimap<PrefixKey, int32_t, KeyHash> by_key_;
  std::map<std::string, int32_t, std::less<>> roots_;  // by salt
  std::vector<int32_t> num_partial_at_;  // [page_tokens]: partial nodes that end at this offset of their page
  // Nodes by their last use. Every page and state that only the index uses is in one of them; some that are
  // in use again are still there, and leave when they come first.
  AgeOrder leaves_;
  AgeOrder parents_;
  AgeOrder states_;
  PagePool* kv_pool_ = nullptr;         // of every node's page; known from the first one on
  PagePool* state_pool_ = nullptr;      // of every state's pages
  std::vector<int32_t> node_of_page_;   // [kv pages] the first node with the page; -1: none
  std::vector<int32_t> node_of_state_;  // [state pages] the node whose state has the page; -1: none
  uint64_t clock_ = 0;
  PrefixStats stats_;
};

}  // namespace longspan::cache
