// Devices of CUDA and HIP, over the names that vendor.h gives their runtimes.
#include <algorithm>
#include <map>

#include "core/units.h"
#include "ops/device/runtime.h"
#include "ops/device/vendor.h"

namespace longspan::ops::device {
namespace {

void check(const char* what, api::Error error) {
  if (error != api::kSuccess)
    fail(ErrorKind::kEnvironment, "{}: {}: {}", api::kName, what, api::error_text(error));
}

void release(void* pointer, size_t) { (void)api::free(pointer); }

// The runtime's current device is a thread's own; the engine's thread is not the one that made the device.
void enter(int index) {
  thread_local int current = -1;
  if (current == index) return;
  check("choosing a device", api::set_device(index));
  current = index;
}

// "13.0", "6.3.26093"
std::string version_text(const api::Version& version) {
  if (version.major == 0) return "";
  const std::string text = fmt::format("{}.{}", version.major, version.minor);
  return version.patch == 0 ? text : fmt::format("{}.{}", text, version.patch);
}

DeviceInfo info_of(int index) {
  api::Properties properties;
  check("properties", api::properties(&properties, index));
  char arch[256];
  return {.index = index,
          .name = properties.name,
          .arch = api::arch_text(properties, arch),
          .wave = properties.warpSize,
          .num_units = properties.multiProcessorCount,
          .shared_bytes = api::max_shared_bytes(properties),
          .memory_bytes = properties.totalGlobalMem,
          .clock_mhz = api::clock_khz(index) / 1000,
          .memory_clock_mhz = api::memory_clock_khz(index) / 1000,
          .ecc = properties.ECCEnabled != 0,
          .full_arch = api::full_arch(properties),
          .driver = version_text(api::driver_version()),
          .runtime = version_text(api::runtime_version())};
}

// The host prepares all launches of a replay before the card sees the first, 1 us each while their times are
// recorded. So the first ones are a replay by themselves: behind them it prepares the rest while they run.
constexpr Index kFirstLaunches = 64;

// The graphs of a recording under way, on the thread that records.
class Capture {
 public:
  struct Refused {};  // thrown where it cannot go on: something before cannot be recorded

  explicit Capture(api::Stream stream) : stream_(stream) {}
  ~Capture() {
    if (open_) (void)api::end_capture(&graphs_.emplace_back(nullptr), stream_);
    for (const api::Graph graph : graphs_)
      if (graph != nullptr) (void)api::destroy(graph);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  bool begin() { return open_ = api::begin_capture(stream_) == api::kSuccess; }
  bool end() {
    open_ = false;
    return api::end_capture(&graphs_.emplace_back(nullptr), stream_) == api::kSuccess &&
           graphs_.back() != nullptr;
  }
  void before_launch() {
    if (num_launches_++ != kFirstLaunches) return;
    num_earlier_ = num_nodes();
    if (!end() || !begin()) throw Refused();
  }
  Index num_nodes() const {
    size_t count = 0;
    return api::num_captured(stream_, &count) == api::kSuccess ? num_earlier_ + static_cast<Index>(count) : 0;
  }
  const std::vector<api::Graph>& graphs() const { return graphs_; }

 private:
  const api::Stream stream_;
  bool open_ = false;
  std::vector<api::Graph> graphs_;
  Index num_launches_ = 0;
  Index num_earlier_ = 0;  // nodes of graphs that have ended
};
thread_local Capture* capturing = nullptr;  // null: nothing is recorded

using Replay = std::vector<api::Recorded>;

void destroy_replay(Replay* replay) {
  for (const api::Recorded part : *replay)
    if (part != nullptr) (void)api::destroy(part);
  delete replay;
}

}  // namespace

struct Device::Impl {
  struct Timed {
    const char* name;
    double bytes, flops;
    api::Event begin, end;
  };
  std::vector<Timed> launches;
  api::Event begin = nullptr;
};

Device::Device(int index) {
  int count = 0;
  check("counting devices", api::num_devices(&count));
  if (index < 0 || index >= count)
    fail(ErrorKind::kEnvironment, "{}: got device {}, need 0 .. {}", api::kName, index, count - 1);
  enter(index);
  info_ = info_of(index);
  api::Stream stream;
  check("making a stream", api::make_stream(&stream));
  stream_ = stream;
}

Device::~Device() {
  delete impl_;
  (void)api::wait(static_cast<api::Stream>(stream_));
  (void)api::destroy(static_cast<api::Stream>(stream_));
}

size_t Device::free_bytes() const {
  enter(info_.index);
  size_t free = 0, total = 0;
  check("free memory", api::memory(&free, &total));
  return free;
}

Buffer Device::allocate(DType dtype, Shape shape) const {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * dtype_size(dtype);
  void* data = nullptr;
  enter(info_.index);
  if (api::allocate(&data, std::max<size_t>(bytes, 1)) != api::kSuccess) {
    (void)api::last_error();  // it is told here; the next launch is not to blame
    fail(ErrorKind::kExhausted, "{}: out of memory: asked for {}, {} free", api::kName, format_bytes(bytes),
         format_bytes(free_bytes()));
  }
  return Buffer(data, dtype, shape, release);
}

void Device::upload(void* to, const void* from, size_t size_bytes) {
  // Pageable memory: the runtime has read it when the call returns, by staging it.
  check("upload", api::copy(to, from, size_bytes, static_cast<api::Stream>(stream_)));
}
void Device::download(void* to, const void* from, size_t size_bytes) {
  check("download", api::copy(to, from, size_bytes, static_cast<api::Stream>(stream_)));
  wait();
}
void Device::copy(void* to, const void* from, size_t size_bytes) {
  check("copy", api::copy(to, from, size_bytes, static_cast<api::Stream>(stream_)));
}
void Device::zero(void* to, size_t size_bytes) {
  check("zeroing", api::fill(to, 0, size_bytes, static_cast<api::Stream>(stream_)));
}
void Device::wait() { check("waiting", api::wait(static_cast<api::Stream>(stream_))); }

std::shared_ptr<void> Device::record(const std::function<void()>& calls) {
  if (impl_ != nullptr) return nullptr;
  enter(info_.index);
  Capture capture(static_cast<api::Stream>(stream_));
  std::shared_ptr<Replay> replay(new Replay, destroy_replay);
  bool whole = capture.begin();
  if (whole) {
    capturing = &capture;
    try {
      calls();
      whole = capture.end();
    } catch (const Capture::Refused&) {
      whole = false;
    } catch (...) {
      capturing = nullptr;
      throw;
    }
    capturing = nullptr;
  }
  for (const api::Graph graph : capture.graphs())
    whole = whole && api::instantiate(&replay->emplace_back(nullptr), graph) == api::kSuccess;
  if (whole) return replay;
  (void)api::last_error();
  return nullptr;
}

Index Device::num_recorded() const { return capturing == nullptr ? 0 : capturing->num_nodes(); }

void Device::replay(void* recorded) {
  enter(info_.index);
  for (const api::Recorded part : *static_cast<Replay*>(recorded))
    check("replay", api::launch(part, static_cast<api::Stream>(stream_)));
}

void Device::start_profile() {
  wait();
  if (impl_ == nullptr) impl_ = new Impl;
}

std::vector<KernelTime> Device::finish_profile() {
  if (impl_ == nullptr) return {};
  wait();
  std::map<std::string, KernelTime> by_name;
  for (const Impl::Timed& timed : impl_->launches) {
    float ms = 0;
    check("timing", api::elapsed_ms(&ms, timed.begin, timed.end));
    KernelTime& row = by_name[timed.name];
    row.name = timed.name;
    ++row.num_launches;
    row.total_ms += ms;
    row.bytes += timed.bytes;
    row.flops += timed.flops;
    (void)api::destroy(timed.begin);
    (void)api::destroy(timed.end);
  }
  delete impl_;
  impl_ = nullptr;
  std::vector<KernelTime> rows;
  for (auto& [name, row] : by_name) rows.push_back(std::move(row));
  std::sort(rows.begin(), rows.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.total_ms > b.total_ms; });
  return rows;
}

void Device::before_launch() {
  enter(info_.index);
  if (capturing != nullptr) capturing->before_launch();
  if (impl_ == nullptr) return;
  check("event", api::make_event(&impl_->begin));
  check("event", api::record(impl_->begin, static_cast<api::Stream>(stream_)));
}

void Device::after_launch(const char* name, double bytes, double flops) {
  if (impl_ == nullptr) return;
  api::Event end;
  check("event", api::make_event(&end));
  check("event", api::record(end, static_cast<api::Stream>(stream_)));
  impl_->launches.push_back({name, bytes, flops, impl_->begin, end});
}

std::string describe_devices() {
  int count = 0;
  if (api::num_devices(&count) != api::kSuccess) count = 0;
  return fmt::format("{} {} devices", count, api::kName);
}

std::vector<DeviceInfo> list_devices() {
  int count = 0;
  if (api::num_devices(&count) != api::kSuccess) {
    (void)api::last_error();
    return {};
  }
  std::vector<DeviceInfo> devices;
  for (int index = 0; index < count; ++index) devices.push_back(info_of(index));
  return devices;
}

}  // namespace longspan::ops::device
