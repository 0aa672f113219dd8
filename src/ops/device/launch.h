// The one place that starts kernels. A kernel is a struct: its arguments are members, its body is
// operator()() const, its block size is kThreads, which is the launch bound as well (without one, DTK's
// compiler assumes 256 threads and breaks larger blocks).
#pragma once

#include "ops/device/memory.h"
#include "ops/device/runtime.h"

namespace longspan::ops::device {

struct Launch {
  const char* name = "";
  Grid grid;
  size_t shared_bytes = 0;
  double bytes = 0;  // device memory moved, each input once
  double flops = 0;
};

template <class Kernel>
void launch(Device& device, const Launch& how, const Kernel& kernel) {
  static_assert(Kernel::kThreads % kMaxWave == 0 && Kernel::kThreads <= 1024);
  if (how.grid.x <= 0 || how.grid.y <= 0 || how.grid.z <= 0) return;  // no work
  CHECK_MSG(how.grid.y <= 65535 && how.grid.z <= 65535, "[{}] grid: got {} x {} x {}", how.name, how.grid.x,
            how.grid.y, how.grid.z);
  CHECK_MSG(how.shared_bytes <= device.info().shared_bytes, "[{}] shared memory: got {}, need at most {}",
            how.name, how.shared_bytes, device.info().shared_bytes);
  device.before_launch();
  const api::Error error =
      start_kernel(kernel, how.name, how.grid, device.info().wave, how.shared_bytes, device.stream());
  CHECK_MSG(error == api::kSuccess, "[{}] launch: {}", how.name, api::error_text(error));
  device.after_launch(how.name, how.bytes, how.flops);
}

// Calls fn.template operator()<kWave>() with the device's wave width.
template <class Fn>
void dispatch_wave(const Device& device, Fn&& fn) {
  if constexpr (kMaxWave == 64)
    if (device.info().wave == 64) return fn.template operator()<64>();
  CHECK_MSG(device.info().wave == 32, "wave: got {}, need 32 or 64", device.info().wave);
  fn.template operator()<32>();
}

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace longspan::ops::device
