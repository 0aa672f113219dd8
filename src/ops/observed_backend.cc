#include "ops/observed_backend.h"

#include <chrono>
#include <utility>

namespace longspan::ops {

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ObservedBackend::ObservedBackend(std::unique_ptr<Backend> inner)
    : inner_(std::move(inner)), tables_(inner_->is_host() ? Tables::kHost : Tables::kDevice) {}

// What a recording does is known from when it was made; whoever observes later is told as well.
class ObservedBackend::ObservedRecording final : public Recording {
 public:
  ObservedRecording(const ObservedBackend& backend, std::unique_ptr<Recording> inner,
                    std::vector<RecordedOp> ops)
      : backend_(backend), inner_(std::move(inner)), ops_(std::move(ops)) {}

  bool replay() override {
    OpObserver* const observer = backend_.observer_;
    if (observer == nullptr) return inner_->replay();
    observer->before_op();
    const int64_t begin = steady_ns();
    const bool replayed = inner_->replay();
    observer->on_replay(replayed ? std::span<const RecordedOp>(ops_) : std::span<const RecordedOp>(), begin,
                        steady_ns());
    return replayed;
  }

 private:
  const ObservedBackend& backend_;
  std::unique_ptr<Recording> inner_;
  std::vector<RecordedOp> ops_;
};

std::unique_ptr<Recording> ObservedBackend::record(const std::function<void()>& calls) {
  struct Listening {
    ObservedBackend& backend;
    ~Listening() { backend.recorded_ = nullptr; }
  };
  std::vector<RecordedOp> ops;
  std::unique_ptr<Recording> recording;
  {
    const Listening listening{*this};
    recorded_ = &ops;
    recording = inner_->record(calls);
  }
  if (recording == nullptr) return nullptr;
  return std::make_unique<ObservedRecording>(*this, std::move(recording), std::move(ops));
}

}  // namespace longspan::ops
