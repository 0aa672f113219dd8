#include "measure/kernel_spans.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace longspan::measure {
namespace {

using ops::device::KernelEvent;

// Which call a ticket belongs to.
class TicketCalls {
 public:
  explicit TicketCalls(const std::vector<KernelEvent>& events) {
    for (const KernelEvent& event : events)
      if (event.kind == KernelEvent::Kind::kCall) calls_.emplace_back(event.ticket, event.value);
    std::ranges::sort(calls_);
  }
  uint32_t call_of(uint32_t ticket) const {
    const auto at = std::ranges::lower_bound(calls_, std::pair(ticket, uint32_t{0}));
    return at != calls_.end() && at->first == ticket ? at->second : 0;
  }

 private:
  std::vector<std::pair<uint32_t, uint32_t>> calls_;
};

// Spans of one replay, in order, to the operations it consists of. False where they are more or fewer.
bool hand_out(const ReplayedCalls& replay, const std::vector<KernelSpan*>& spans) {
  const auto total = std::accumulate(replay.num_launches.begin(), replay.num_launches.end(), size_t{0});
  if (total != spans.size()) {
    for (KernelSpan* span : spans) span->call = 0;
    return false;
  }
  size_t next = 0;
  for (size_t op = 0; op < replay.num_launches.size(); ++op)
    for (uint8_t i = 0; i < replay.num_launches[op]; ++i)
      spans[next++]->call = replay.first_call + static_cast<uint32_t>(op);
  return true;
}

int64_t resolve_replays(std::vector<KernelSpan>& spans, std::span<const ReplayedCalls> replays) {
  std::map<uint32_t, std::vector<KernelSpan*>> by_call;
  for (const ReplayedCalls& replay : replays) by_call[replay.first_call];
  for (KernelSpan& span : spans)
    if (const auto at = by_call.find(span.call); at != by_call.end()) at->second.push_back(&span);
  return std::ranges::count_if(
      replays, [&](const ReplayedCalls& replay) { return !hand_out(replay, by_call.at(replay.first_call)); });
}

// Each nanosecond once, and none outside of the window; what is left of a span may be empty.
void cut_times(std::vector<KernelSpan>& spans, int64_t window_begin_ns, int64_t window_end_ns) {
  int64_t covered_ns = window_begin_ns;
  for (KernelSpan& span : spans) {
    span.begin_ns = std::clamp(span.begin_ns, covered_ns, std::max(covered_ns, window_end_ns));
    span.end_ns = std::clamp(span.end_ns, span.begin_ns, std::max(span.begin_ns, window_end_ns));
    covered_ns = std::max(covered_ns, span.end_ns);
  }
}

}  // namespace

KernelSpans spans_of(std::vector<KernelEvent> events, std::span<const ReplayedCalls> replays,
                     int64_t window_begin_ns, int64_t window_end_ns) {
  const TicketCalls tickets(events);
  KernelSpans result;
  for (const KernelEvent& event : events)
    if (event.kind != KernelEvent::Kind::kCall && event.end_ns > window_begin_ns &&
        event.begin_ns < window_end_ns)
      result.spans.push_back({.begin_ns = event.begin_ns,
                              .end_ns = event.end_ns,
                              .call = tickets.call_of(event.ticket),
                              .name = event.value,
                              .is_copy = event.kind == KernelEvent::Kind::kCopy});
  events = {};
  std::ranges::stable_sort(result.spans, {}, &KernelSpan::begin_ns);
  result.num_unmatched_replays = resolve_replays(result.spans, replays);
  cut_times(result.spans, window_begin_ns, window_end_ns);
  return result;
}

}  // namespace longspan::measure
