// One device: its memory, its stream, and what it is. No vendor type shows here; runtime_gpu.cc or
// runtime_emulator.cc stands behind it, whichever the build has.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"

namespace longspan::ops::device {

struct DeviceInfo {
  int index = 0;
  std::string name;         // "NVIDIA H200"
  std::string arch;         // "sm_90", "gfx936", "wave32" (emulator)
  int wave = 32;            // lanes
  int num_units = 1;        // multiprocessors, compute units
  size_t shared_bytes = 0;  // of one block, at most
  size_t memory_bytes = 0;
  // What only people ask for; zero and empty where the runtime does not say.
  int clock_mhz = 0;
  int memory_clock_mhz = 0;
  bool ecc = false;
  std::string full_arch;  // "gfx936:sramecc+:xnack-"; empty on cuda
  std::string driver;     // "13.0", "6.3.26093": what the driver can
  std::string runtime;    // what this program was linked to
};

// What launches of one name took, in eager execution.
struct KernelTime {
  std::string name;
  int64_t num_launches = 0;
  double total_ms = 0;
  double bytes = 0;  // moved, by the launches' own account
  double flops = 0;
};

// Not thread-safe. All work goes into one stream, in order. Buffers may outlive it.
class Device final {
 public:
  // Throws kEnvironment when there is no such device, naming the driver's words.
  explicit Device(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  size_t free_bytes() const;
  void* stream() const { return stream_; }

  // Uninitialised device memory (the emulator's holds NaN). Throws kExhausted.
  Buffer allocate(DType dtype, Shape shape) const;
  // In stream order. From host memory: it may be reused on return. To host memory: there on return.
  void upload(void* to, const void* from, size_t size_bytes);
  void download(void* to, const void* from, size_t size_bytes);
  void copy(void* to, const void* from, size_t size_bytes);  // device to device
  void zero(void* to, size_t size_bytes);
  void wait();

  // Keeps what `calls` puts into the stream instead of running it; null where the device cannot, and while a
  // profile is taken. replay() puts all of it into the stream.
  std::shared_ptr<void> record(const std::function<void()>& calls);
  Index num_recorded() const;  // kernels and copies so far, inside `calls` of record(); else 0
  void replay(void* recorded);

  // Times every launch from here on with two events; costs a few microseconds a launch.
  void start_profile();
  std::vector<KernelTime> finish_profile();  // longest first

  // For launch() alone.
  void before_launch();
  void after_launch(const char* name, double bytes, double flops);

 private:
  struct Impl;
  DeviceInfo info_;
  void* stream_ = nullptr;
  Impl* impl_ = nullptr;  // the profile in progress
};

// Devices that this build can see, for messages: "2 cuda devices", "emulator".
std::string describe_devices();
// The same one by one. Asks only: no memory is taken on them. Empty where there is none, or no driver.
std::vector<DeviceInfo> list_devices();

}  // namespace longspan::ops::device
