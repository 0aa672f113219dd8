// What the device did in a window, span by span: when, and for which operation of the engine's trace. Made
// from the events of a kernel clock. Knows no files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/device/kernel_clock.h"

namespace longspan::measure {

// Times are each span's own: where two overlap (a kernel may begin before the one in front of it ends), the
// first keeps the time. So spans in their order never overlap, and their times add up.
struct KernelSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint32_t call = 0;  // 0: no operation asked for it
  uint32_t name = 0;  // index; of copies undefined
  bool is_copy = false;
};

// Calls first_call, first_call + 1, ... were put to the device as one, each as so many launches.
struct ReplayedCalls {
  uint32_t first_call = 0;
  std::vector<uint8_t> num_launches;
};

struct KernelSpans {
  std::vector<KernelSpan> spans;      // in order of time, inside the window
  int64_t num_unmatched_replays = 0;  // what they did is not what was recorded: their spans have no call
};

// replays: in order of first_call.
KernelSpans spans_of(std::vector<ops::device::KernelEvent> events, std::span<const ReplayedCalls> replays,
                     int64_t window_begin_ns, int64_t window_end_ns);

}  // namespace longspan::measure
