#include "measure/kernel_times.h"

#include <algorithm>
#include <cmath>

#include "measure/peaks.h"

namespace longspan::measure {
namespace {

constexpr int kFewestRuns = 3;  // whatever the limit
constexpr int kWarmUps = 2;

}  // namespace

double KernelTimes::percentile(double share) const {
  return us[static_cast<size_t>(std::lround(share * static_cast<double>(us.size() - 1)))];
}

KernelTimes time_calls(const std::function<void(Index i)>& call, const std::function<void()>& wait,
                       const TimingOptions& options) {
  Index next = 0;
  const auto run = [&](Index calls) {  // microseconds a call
    const double begin = now_seconds();
    for (Index i = 0; i < calls; ++i) call(next++);
    wait();
    return (now_seconds() - begin) * 1e6 / static_cast<double>(calls);
  };
  double us = 0;
  for (int warm_up = 0; warm_up < kWarmUps; ++warm_up) us = run(1);
  Index calls = 1;
  while (options.run_seconds > 0 && us * static_cast<double>(calls) < 0.7e6 * options.run_seconds) {
    calls = std::max<Index>(calls + 1, static_cast<Index>(options.run_seconds * 1e6 / us));
    us = run(calls);
  }
  KernelTimes times;
  const double end = now_seconds() + options.limit_seconds;
  // Short kernels run on for a tenth of the limit: thirty runs of a microsecond are no median.
  const double enough = now_seconds() + options.limit_seconds / 10;
  while (std::ssize(times.us) < options.min_runs || now_seconds() < enough) {
    if (now_seconds() > end && times.us.size() >= kFewestRuns) {
      times.limited = true;
      break;
    }
    times.us.push_back(run(calls));
  }
  std::ranges::sort(times.us);
  return times;
}

}  // namespace longspan::measure
