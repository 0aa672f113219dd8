// The one loop that times a kernel: what benches of operations and of peaks count with.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/tensor.h"

namespace longspan::measure {

// Times of one call, sorted.
struct KernelTimes {
  std::vector<double> us;
  bool limited = false;  // fewer than asked for: the time was up

  double median() const { return percentile(0.5); }
  double best() const { return us.front(); }
  double percentile(double share) const;
};

struct TimingOptions {
  int64_t min_runs = 30;
  double limit_seconds = 5;  // then fewer runs must do
  // A run is one call and a wait, or as many calls in front of one wait as take this long: on a device a
  // launch and a wait cost as much as a short kernel, and steps do not wait either.
  double run_seconds = 0;
};
inline constexpr double kDeviceRunSeconds = 2e-3;

// call(i), i counting up; wait() returns when all calls are done.
KernelTimes time_calls(const std::function<void(Index i)>& call, const std::function<void()>& wait,
                       const TimingOptions& options);

}  // namespace longspan::measure
