// Sequence: one request under way, its tokens, its place in the order, and the pages it holds.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/page_pool.h"
#include "cache/state_slot.h"
#include "schedule/request.h"

namespace longspan::schedule {

enum class SeqStatus : uint8_t {
  kWaiting,  // holds nothing; new, or preempted and to be replayed
  kSwapped,  // its pages and state lie in host memory
  kRunning,  // has a row and pages on the device
};

// Smaller runs first and is preempted last. key = arrival + priority * kPriorityStep: a request waits for a
// bounded number of later ones, whatever the priorities.
struct Rank {
  int64_t key = 0;
  int64_t arrival = 0;
  auto operator<=>(const Rank&) const = default;
};

struct Sequence {
  SeqId id = 0;
  std::vector<int32_t>
      tokens;  // [num_prompt + num_generated()]; room for all is reserved when it starts to run
  int64_t num_prompt = 0;
  int64_t max_new_tokens = 0;
  std::string cache_salt;
  bool share_prefix = true;
  Rank rank;

  SeqStatus status = SeqStatus::kWaiting;
  int32_t row = -1;          // of the block tables, while running
  int64_t num_computed = 0;  // tokens whose K, V and state are in the cache
  int64_t num_known = 0;     // tokens that were computed before a replay began; not news the second time
  int64_t num_indexed = 0;   // prompt tokens that the prefix index has been told of
  std::vector<cache::Page> pages;  // K and V: device pages while running, host pages while swapped
  cache::StateSlot state;          // likewise; state.num_tokens == num_computed
  bool cancelled = false;          // while a step was under way; dropped at its end

  int64_t num_cached = 0;   // prompt tokens taken from the prefix index at the first admission
  int32_t num_swaps = 0;    // preemptions to host memory
  int32_t num_replays = 0;  // preemptions without it

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_generated() const { return num_tokens() - num_prompt; }
  bool in_prefill() const { return num_computed < num_prompt; }
};

}  // namespace longspan::schedule
