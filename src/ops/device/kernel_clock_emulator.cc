// Kernel times of the emulator: the host's.
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "ops/device/emulator.h"
#include "ops/device/kernel_clock.h"

namespace longspan::ops::device {
namespace {

class EmulatorClock final : public KernelClock {
 public:
  EmulatorClock() {
    const bool alone = emulator::listen([this](const char* name, int64_t begin_ns, int64_t end_ns) {
      const std::lock_guard lock(mutex_);
      const bool copy = name == nullptr;
      add({.begin_ns = begin_ns,
           .end_ns = end_ns,
           .ticket = open_ ? ticket_ : 0,
           .value = copy ? 0 : index_of(name),
           .kind = copy ? KernelEvent::Kind::kCopy : KernelEvent::Kind::kKernel});
    });
    if (!alone) fail(ErrorKind::kEnvironment, "emulator: another kernel clock runs");
  }
  ~EmulatorClock() override { EmulatorClock::stop(); }

  void open(uint32_t call) override {
    const std::lock_guard lock(mutex_);
    open_ = true;
    add({.ticket = ++ticket_, .value = call, .kind = KernelEvent::Kind::kCall});
  }
  void close() override {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  KernelEvents take() override {
    const std::lock_guard lock(mutex_);
    return {std::exchange(events_, {}), std::exchange(new_names_, {}), num_lost_};
  }
  void stop() override {
    if (!std::exchange(stopped_, true)) emulator::listen(nullptr);
  }

 private:
  void add(const KernelEvent& event) {
    if (events_.size() < kMaxWaitingEvents)
      events_.push_back(event);
    else
      ++num_lost_;
  }
  uint32_t index_of(const char* name) {
    const auto [at, is_new] = indices_.try_emplace(name, static_cast<uint32_t>(indices_.size()));
    if (is_new) new_names_.emplace_back(name);
    return at->second;
  }

  std::mutex mutex_;
  std::vector<KernelEvent> events_;  // guarded by mutex_, as all below
  std::map<std::string, uint32_t> indices_;
  std::vector<std::string> new_names_;
  int64_t num_lost_ = 0;
  uint32_t ticket_ = 0;
  bool open_ = false;
  bool stopped_ = false;
};

}  // namespace

std::unique_ptr<KernelClock> start_kernel_clock() { return std::make_unique<EmulatorClock>(); }

}  // namespace longspan::ops::device
