// Kernel times of the emulator: the host's.
#include <mutex>
#include <utility>

#include "core/error.h"
#include "ops/device/emulator.h"
#include "ops/device/kernel_event_log.h"

namespace longspan::ops::device {
namespace {

class EmulatorClock final : public KernelClock {
 public:
  EmulatorClock() {
    const bool alone = emulator::listen([this](const char* name, int64_t begin_ns, int64_t end_ns) {
      const std::lock_guard lock(mutex_);
      const bool copy = name == nullptr;
      log_.add({.begin_ns = begin_ns,
                .end_ns = end_ns,
                .ticket = open_ ? ticket_ : 0,
                .value = copy ? 0 : log_.index_of(name),
                .kind = copy ? KernelEvent::Kind::kCopy : KernelEvent::Kind::kKernel});
    });
    if (!alone) fail(ErrorKind::kEnvironment, "emulator: another kernel clock runs");
  }
  ~EmulatorClock() override { EmulatorClock::stop(); }

  void open(uint32_t call) override {
    const std::lock_guard lock(mutex_);
    open_ = true;
    log_.add({.ticket = ++ticket_, .value = call, .kind = KernelEvent::Kind::kCall});
  }
  void close() override {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  KernelEvents take() override {
    const std::lock_guard lock(mutex_);
    return log_.take();
  }
  void stop() override {
    if (!std::exchange(stopped_, true)) emulator::listen(nullptr);
  }

 private:
  std::mutex mutex_;
  KernelEventLog log_;  // guarded by mutex_, as the two below
  uint32_t ticket_ = 0;
  bool open_ = false;
  bool stopped_ = false;
};

}  // namespace

std::unique_ptr<KernelClock> start_kernel_clock() { return std::make_unique<EmulatorClock>(); }

}  // namespace longspan::ops::device
