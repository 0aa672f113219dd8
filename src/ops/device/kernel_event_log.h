// KernelEventLog: what a KernelClock has seen and nobody has taken yet. Not locked.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/device/kernel_clock.h"

namespace longspan::ops::device {

// The clock of a KernelEvent's times.
inline int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class KernelEventLog {
 public:
  void add(const KernelEvent& event) {
    if (events_.size() < kMaxWaitingEvents)
      events_.push_back(event);
    else
      ++num_lost_;
  }
  void count_lost(int64_t num_events) { num_lost_ += num_events; }

  // name: null where the vendor does not tell it.
  uint32_t index_of(const char* name) {
    const auto [at, is_new] =
        indices_.try_emplace(name == nullptr ? "?" : name, static_cast<uint32_t>(indices_.size()));
    if (is_new) new_names_.push_back(at->first);
    return at->second;
  }

  KernelEvents take() { return {std::exchange(events_, {}), std::exchange(new_names_, {}), num_lost_}; }

 private:
  std::vector<KernelEvent> events_;
  std::map<std::string, uint32_t> indices_;
  std::vector<std::string> new_names_;
  int64_t num_lost_ = 0;
};

}  // namespace longspan::ops::device
