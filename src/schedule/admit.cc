// From waiting to running: strictly in rank order, and only with room for all that is known of the sequence,
// so that a prefill never stops half-way for want of pages of its own.
#include <algorithm>
#include <iterator>
#include <utility>

#include "schedule/scheduler.h"

namespace longspan::schedule {

void Scheduler::pick_admissions() {
  while (!waiting_.empty() && std::ssize(running_) < options_.max_num_seqs) {
    Sequence& head = *waiting_.begin()->second;
    if (&head == blocked_ && !running_.empty()) return;
    if (!admit(head)) return;
  }
}

bool Scheduler::admit(Sequence& seq) {
  if (budget_.left() == 0) return false;
  if (seq.status == SeqStatus::kSwapped) return admit_swapped(seq);
  if (admit_waiting(seq, /*use_index=*/indexed(seq))) return true;
  // A hit holds pages of its own while it is copied. Alone, a sequence must not fail for that.
  return running_.empty() && indexed(seq) && admit_waiting(seq, /*use_index=*/false);
}

// Remembers that the head of the queue found no pages. Returns false, for its caller to return.
bool Scheduler::block(const Sequence& seq) {
  if (held_.empty()) blocked_ = &seq;  // what this step holds comes back at its end
  return false;
}

// A long prompt without room for a chunk is let in all the same when a short one may be behind it.
bool Scheduler::may_wait_inside() {
  note_starved();
  return budget_.keeps_room() && !prefills_.empty();
}

bool Scheduler::admit_waiting(Sequence& seq, bool use_index) {
  cache::PrefixHit hit;
  const std::span<const int32_t> prompt =
      std::span<const int32_t>(seq.tokens).first(static_cast<size_t>(seq.num_prompt));
  if (use_index) hit = memory_.index()->find(seq.cache_salt, prompt, seq.num_prompt - 1);

  const int64_t num_new_pages = plan_.pages_for(seq.num_tokens()) - std::ssize(hit.pages);
  const int64_t reserve = std::ssize(running_);  // each may want its next page soon
  if (!memory_.may_fit(num_new_pages + reserve, 1)) return block(seq);
  const int64_t q_len = budget_.chunk(hit.num_tokens, seq.num_prompt);
  if (q_len == 0 && !may_wait_inside()) return false;
  std::optional<std::vector<cache::Page>> pages = memory_.allocate_pages(num_new_pages);
  std::optional<cache::StateSlot> state = pages ? memory_.allocate_state() : std::nullopt;
  if (!state) return block(seq);

  if (use_index) memory_.index()->use(hit, seq.num_prompt);
  if (seq.num_replays == 0) {
    seq.num_cached = hit.num_tokens;
    stats_.num_cached_tokens += hit.num_tokens;
  }
  seq.pages = std::move(*pages);
  seq.state = std::move(*state);
  copy_hit(std::move(hit), seq);
  start(seq);
  pick_prefill(seq, q_len);
  return true;
}

// Full pages are shared; the partly filled one and the state, which the sequence goes on to write, are
// copied.
void Scheduler::copy_hit(cache::PrefixHit hit, Sequence& seq) {
  seq.num_computed = hit.num_tokens;
  seq.state.num_tokens = hit.num_tokens;
  seq.num_indexed = std::ssize(hit.pages) * plan_.page_tokens;
  if (hit.partial) {
    step_.copies.push_back({.group = 0, .src = hit.partial.id(), .dst = seq.pages.front().id()});
    held_.push_back(std::move(hit.partial));
  }
  for (size_t i = 0; i < hit.state.pages.size(); ++i) {
    step_.copies.push_back({.group = static_cast<int32_t>(i + 1),
                            .src = hit.state.pages[i].id(),
                            .dst = seq.state.pages[i].id()});
    held_.push_back(std::move(hit.state.pages[i]));
  }
  seq.pages.insert(seq.pages.begin(), std::make_move_iterator(hit.pages.begin()),
                   std::make_move_iterator(hit.pages.end()));
}

bool Scheduler::admit_swapped(Sequence& seq) {
  const int64_t num_pages = plan_.pages_for(seq.num_tokens());
  const int64_t reserve = std::ssize(running_);
  if (!memory_.may_fit(num_pages + reserve, 1)) return block(seq);
  const int64_t q_len = seq.in_prefill() ? budget_.chunk(seq.num_computed, seq.num_prompt) : 1;
  if (q_len == 0 && !may_wait_inside()) return false;
  std::optional<std::vector<cache::Page>> pages = memory_.allocate_pages(num_pages);
  std::optional<cache::StateSlot> state = pages ? memory_.allocate_state() : std::nullopt;
  if (!state) return block(seq);

  // The host pages are free at once: a step that swaps in swaps nobody out.
  const auto bring_back = [&](int32_t group, const cache::Page& host, const cache::Page& device) {
    step_.swap_in.push_back({.group = group, .src = host.id(), .dst = device.id()});
  };
  for (size_t i = 0; i < seq.pages.size(); ++i) bring_back(0, seq.pages[i], (*pages)[i]);
  for (size_t i = 0; i < seq.state.pages.size(); ++i)
    bring_back(static_cast<int32_t>(i + 1), seq.state.pages[i], state->pages[i]);
  seq.pages = std::move(*pages);
  seq.state = std::move(*state);
  seq.state.num_tokens = seq.num_computed;
  start(seq);
  if (seq.in_prefill()) {
    pick_prefill(seq, q_len);
  } else {
    pick_decode(seq);
  }
  return true;
}

void Scheduler::start(Sequence& seq) {
  waiting_.erase(seq.rank);
  running_.emplace(seq.rank, &seq);
  seq.status = SeqStatus::kRunning;
  // Room for all of it: decode steps allocate nothing, and who waits takes none.
  seq.tokens.reserve(static_cast<size_t>(seq.num_prompt + seq.max_new_tokens));
  seq.pages.reserve(static_cast<size_t>(plan_.pages_for(seq.num_prompt + seq.max_new_tokens)));
  rows_.add(seq);
}

}  // namespace longspan::schedule
