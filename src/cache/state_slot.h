// StateSlot: the recurrent state of one sequence over all its state layers, and the exact number of tokens it
// belongs to. A state is never rewound: it is advanced by the model, copied, or dropped.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_pool.h"

namespace longspan::cache {

struct StateSlot {
  std::vector<Page> pages;  // [num_state_groups]: one page a group (unified) or the one slot (split)
  int64_t num_tokens = 0;   // tokens the state has seen; 0: zero, whatever the pages hold

  explicit operator bool() const { return !pages.empty(); }
  StateSlot share() const { return {cache::share(pages), num_tokens}; }
};

}  // namespace longspan::cache
