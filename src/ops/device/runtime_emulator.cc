// The emulator as a device: device 0 has waves of 32 lanes, device 1 of 64. Its memory is the host's, fenced.
#include "ops/device/emulator.h"
#include "ops/device/runtime.h"

namespace longspan::ops::device {
namespace {

constexpr size_t kSharedBytes[] = {size_t{227} << 10, size_t{64} << 10};  // as a Hopper's, as an AMD part's
constexpr size_t kMemoryBytes = size_t{8} << 30;

void release(void* pointer, size_t) { emulator::free(pointer); }

void run_or_keep(const std::function<void()>& copy) {
  if (emulator::recording() != nullptr)
    emulator::recording()->push_back([=] { emulator::run_copy(copy); });
  else
    emulator::run_copy(copy);
}

}  // namespace

struct Device::Impl {};

Device::Device(int index) {
  if (index < 0 || index > 1) fail(ErrorKind::kEnvironment, "emulator: got device {}, need 0 or 1", index);
  emulator::prepare();
  const int wave = index == 0 ? kMaxWave / 2 : kMaxWave;
  info_ = {.name = "SIMT emulator",
           .arch = fmt::format("wave{}", wave),
           .wave = wave,
           .shared_bytes = kSharedBytes[index],
           .memory_bytes = kMemoryBytes};
}
Device::~Device() = default;

size_t Device::free_bytes() const { return kMemoryBytes - emulator::allocated_bytes(); }

Buffer Device::allocate(DType dtype, Shape shape) const {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * dtype_size(dtype);
  void* data = emulator::allocate(bytes);
  if (data == nullptr) fail(ErrorKind::kExhausted, "emulator: out of memory, asked for {} bytes", bytes);
  return Buffer(data, dtype, shape, release);
}

void Device::upload(void* to, const void* from, size_t size_bytes) {
  CHECK_MSG(emulator::recording() == nullptr, "upload of {} bytes inside a recording", size_bytes);
  emulator::run_copy([=] { std::memcpy(to, from, size_bytes); });
}
void Device::download(void* to, const void* from, size_t size_bytes) {
  CHECK_MSG(emulator::recording() == nullptr, "download of {} bytes inside a recording", size_bytes);
  emulator::run_copy([=] { std::memcpy(to, from, size_bytes); });
}
void Device::copy(void* to, const void* from, size_t size_bytes) {
  run_or_keep([=] { std::memcpy(to, from, size_bytes); });
}
void Device::zero(void* to, size_t size_bytes) {
  run_or_keep([=] { std::memset(to, 0, size_bytes); });
}
void Device::wait() {}

std::shared_ptr<void> Device::record(const std::function<void()>& calls) {
  auto recorded = std::make_shared<emulator::Recorded>();
  emulator::recording() = recorded.get();
  try {
    calls();
  } catch (...) {
    emulator::recording() = nullptr;
    throw;
  }
  emulator::recording() = nullptr;
  return recorded;
}
Index Device::num_recorded() const {
  return emulator::recording() == nullptr ? 0 : std::ssize(*emulator::recording());
}
void Device::replay(void* recorded) {
  for (const std::function<void()>& work : *static_cast<emulator::Recorded*>(recorded)) work();
}

void Device::start_profile() {}
std::vector<KernelTime> Device::finish_profile() { return {}; }
void Device::before_launch() {}
void Device::after_launch(const char*, double, double) {}

std::string describe_devices() { return "emulator"; }

std::vector<DeviceInfo> list_devices() { return {}; }  // it is no device of this machine

}  // namespace longspan::ops::device
