// Sequence: one request under way, its tokens, its place in the order, and the pages it holds.
#pragma once

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

struct Sequence {
  SeqId id = 0;
  std::vector<int32_t> tokens;  // [num_prompt + num_generated()]; room for all is reserved at the start
  int64_t num_prompt = 0;
  int64_t max_new_tokens = 0;
  std::string cache_salt;
  // Smaller runs first and is preempted last. arrival + priority * kPriorityStep: so a request waits for a
  // bounded number of later ones, whatever their priority.
  int64_t rank = 0;

  SeqStatus status = SeqStatus::kWaiting;
  int32_t row = -1;                // of the block tables, while running
  int64_t num_computed = 0;        // tokens whose K, V and state are in the cache
  int64_t num_indexed = 0;         // prompt tokens whose full pages the prefix index has been told of
  std::vector<cache::Page> pages;  // KV pages: device while running, host while swapped
  cache::StateSlot state;          // likewise; state.num_tokens == num_computed
  bool cancelled = false;          // while a step was under way; dropped at its end

  int64_t num_cached = 0;  // prompt tokens taken from the prefix index at first admission
  int32_t num_swaps = 0;   // preemptions of either kind
  int32_t num_replays = 0;

  int64_t num_generated() const { return static_cast<int64_t>(tokens.size()) - num_prompt; }
  bool in_prefill() const { return num_computed < num_prompt; }
};

}  // namespace longspan::schedule
