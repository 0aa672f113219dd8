// From running to waiting: whoever ranks last gives its pages to whoever cannot go on without one.
#include <algorithm>
#include <utility>

#include "schedule/scheduler.h"

namespace longspan::schedule {

// Pages for the next token of a decoding sequence. False when it had to give up its own place.
bool Scheduler::grow(Sequence& seq) {
  while (std::ssize(seq.pages) < plan_.pages_for(seq.num_computed + 1)) {
    if (std::optional<cache::Page> page = memory_.allocate_page()) {
      rows_.append(seq, *page);
      seq.pages.push_back(std::move(*page));
      continue;
    }
    Sequence& last = *running_.rbegin()->second;
    preempt(last);
    if (&last == &seq) return false;
  }
  return true;
}

void Scheduler::preempt(Sequence& seq) {
  preempted_ = true;
  stop(seq);
  if (!swap_out(seq)) {
    // Replay: the prompt is prefilled again and the known answer decoded again, as the first time.
    seq.status = SeqStatus::kWaiting;
    seq.num_known = std::max(seq.num_known, seq.num_computed);
    seq.num_computed = 0;
    seq.num_indexed = 0;
    seq.pages.clear();
    seq.state = {};
    ++seq.num_replays;
    ++stats_.num_replays;
  }
  waiting_.emplace(seq.rank, &seq);
}

// False when host memory has no room. The device pages are free at once: the step copies before it computes.
bool Scheduler::swap_out(Sequence& seq) {
  if (seq.num_computed == 0) return false;
  std::optional<std::vector<cache::Page>> pages =
      memory_.allocate_host_pages(plan_.pages_for(seq.num_computed));
  std::optional<cache::StateSlot> state = pages ? memory_.allocate_host_state() : std::nullopt;
  if (!state) return false;
  for (size_t i = 0; i < pages->size(); ++i)
    step_.swap_out.push_back({.group = 0, .src = seq.pages[i].id(), .dst = (*pages)[i].id()});
  for (size_t i = 0; i < state->pages.size(); ++i)
    step_.swap_out.push_back(
        {.group = static_cast<int32_t>(i + 1), .src = seq.state.pages[i].id(), .dst = state->pages[i].id()});
  seq.status = SeqStatus::kSwapped;
  seq.pages = std::move(*pages);
  seq.state = std::move(*state);
  seq.state.num_tokens = seq.num_computed;
  ++seq.num_swaps;
  ++stats_.num_swap_outs;
  return true;
}

// Leaves the batch; pages and state stay with the sequence.
void Scheduler::stop(Sequence& seq) {
  running_.erase(seq.rank);
  rows_.remove(seq);
  blocked_ = nullptr;
}

}  // namespace longspan::schedule
