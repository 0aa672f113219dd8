// ProfileTotals: the sums of a trace, event by event; on a device the times are those of its kernels, which
// come when all events are there.
#pragma once

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/step_trace.h"
#include "measure/kernel_spans.h"

namespace longspan::measure {

struct WorkTotal {
  int64_t calls = 0;
  int64_t launches = 0;  // on a device: kernels and copies of them
  int64_t ns = 0;
  double bytes = 0;      // of calls whose bytes are known
  int64_t bytes_ns = 0;  // what those took
  double flops = 0;
  int64_t flops_ns = 0;

  void add_call(const ops::OpWork& op);
  // Of a call that was added, or a part of it.
  void add_time(int64_t took_ns, bool bytes_known, bool flops_known);
  double gbytes_per_s() const { return bytes_ns > 0 ? bytes / static_cast<double>(bytes_ns) : 0; }
  double tflops() const { return flops_ns > 0 ? flops / static_cast<double>(flops_ns) * 1e-3 : 0; }
};

struct KernelTotal {
  std::string name;
  ops::OpClass op_class = ops::OpClass::kRows;
  WorkTotal work;
};

// What a kernel's name on the device stands for.
struct LaunchTotal {
  std::string name;
  int64_t launches = 0;
  int64_t ns = 0;
};

// What an operation's time is.
enum class OpTiming : uint8_t {
  kCalls,   // of its call on the host
  kKernels  // of its kernels on the device
};

class ProfileTotals final {
 public:
  explicit ProfileTotals(OpTiming timing = OpTiming::kCalls) : timing_(timing) {}

  void add(const engine::TraceEvent& event);
  // With kKernels, once, when all events are there: what the device did. names: of the spans' kernels.
  KernelSpans add_kernels(std::vector<ops::device::KernelEvent> events,
                          const std::vector<std::string>& names);

  int64_t begin_ns() const { return begin_ns_; }
  int64_t wall_ns() const { return end_ns_ - begin_ns_; }
  const std::array<WorkTotal, ops::kNumOpClasses>& classes() const { return classes_; }
  int64_t phase_ns(engine::Phase phase) const { return phases_[static_cast<size_t>(phase)]; }
  int64_t phase_calls(engine::Phase phase) const { return phase_calls_[static_cast<size_t>(phase)]; }
  // Of a phase, what no operation took.
  int64_t own_ns(engine::Phase phase) const { return phase_ns(phase) - op_ns_[static_cast<size_t>(phase)]; }
  std::vector<KernelTotal> kernels() const;  // longest first
  // With kKernels: of the device, what no operation asked for, and what each kernel took, longest first.
  const WorkTotal& copies() const { return copies_; }
  const WorkTotal& other_kernels() const { return other_kernels_; }
  const std::vector<LaunchTotal>& launches() const { return launches_; }
  // Of a phase, when neither a kernel nor a copy ran.
  int64_t device_idle_ns(engine::Phase phase) const { return device_idle_[static_cast<size_t>(phase)]; }
  // Of a span's operation; null where none asked for it.
  const KernelTotal* kernel_of(const KernelSpan& span) const;
  // When nothing was computed: on a device no kernel, else no step.
  int64_t idle_ns() const;
  OpTiming timing() const { return timing_; }
  const std::vector<engine::TraceEvent>& cold_steps() const { return cold_steps_; }

  int64_t num_events = 0;
  int64_t num_steps = 0;
  int64_t num_prefill_steps = 0;  // prompts alone
  int64_t num_decode_steps = 0;   // sequences that decode alone
  int64_t prompt_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t num_requests = 0;         // that came in the window
  int64_t num_requests_before = 0;  // that were there when it began

 private:
  using Key = std::tuple<ops::OpKind, ops::OpClass, ops::AttentionPath, bool, int32_t, int32_t>;

  struct Call {
    uint32_t call = 0;
    bool bytes_known = false;
    bool flops_known = false;
    KernelTotal* kernel = nullptr;
  };
  struct PhaseSpan {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    engine::Phase phase = engine::Phase::kIdle;
  };

  void add_op(const engine::TraceEvent& event);
  void add_span(const KernelSpan& span);
  void add_launches(const std::vector<KernelSpan>& spans, const std::vector<std::string>& names);
  void add_device_idle(const std::vector<KernelSpan>& spans);
  const Call* find_call(uint32_t call) const;

  const OpTiming timing_;
  int64_t begin_ns_ = 0;
  int64_t end_ns_ = 0;
  std::array<WorkTotal, ops::kNumOpClasses> classes_{};
  std::array<int64_t, engine::kNumPhases> phases_{};
  std::array<int64_t, engine::kNumPhases> phase_calls_{};
  std::array<int64_t, engine::kNumPhases> op_ns_{};
  std::map<Key, KernelTotal> kernels_;
  std::vector<engine::TraceEvent> cold_steps_;

  // With kKernels.
  std::vector<Call> calls_;  // in order, as the engine counts them
  std::vector<ReplayedCalls> replays_;
  int32_t replay_left_ = 0;  // operations of the last replay that are still to come
  std::vector<PhaseSpan> phase_spans_;
  WorkTotal copies_;
  WorkTotal other_kernels_;
  std::vector<LaunchTotal> launches_;
  std::array<int64_t, engine::kNumPhases> device_idle_{};
};

}  // namespace longspan::measure
