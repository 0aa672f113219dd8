// ProfileTotals: the sums of a trace, event by event.
#pragma once

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/step_trace.h"

namespace longspan::measure {

struct WorkTotal {
  int64_t calls = 0;
  int64_t ns = 0;
  double bytes = 0;      // of calls whose bytes are known
  int64_t bytes_ns = 0;  // what those took
  double flops = 0;
  int64_t flops_ns = 0;

  void add(const engine::TraceEvent& event);
  double gbytes_per_s() const { return bytes_ns > 0 ? bytes / static_cast<double>(bytes_ns) : 0; }
  double tflops() const { return flops_ns > 0 ? flops / static_cast<double>(flops_ns) * 1e-3 : 0; }
};

struct KernelTotal {
  std::string name;
  ops::OpClass op_class = ops::OpClass::kRows;
  WorkTotal work;
};

class ProfileTotals final {
 public:
  void add(const engine::TraceEvent& event);

  int64_t begin_ns() const { return begin_ns_; }
  int64_t wall_ns() const { return end_ns_ - begin_ns_; }
  const std::array<WorkTotal, ops::kNumOpClasses>& classes() const { return classes_; }
  int64_t phase_ns(engine::Phase phase) const { return phases_[static_cast<size_t>(phase)]; }
  int64_t phase_calls(engine::Phase phase) const { return phase_calls_[static_cast<size_t>(phase)]; }
  // Of a phase, what no operation took.
  int64_t own_ns(engine::Phase phase) const { return phase_ns(phase) - op_ns_[static_cast<size_t>(phase)]; }
  std::vector<KernelTotal> kernels() const;  // longest first
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

  int64_t begin_ns_ = 0;
  int64_t end_ns_ = 0;
  std::array<WorkTotal, ops::kNumOpClasses> classes_{};
  std::array<int64_t, engine::kNumPhases> phases_{};
  std::array<int64_t, engine::kNumPhases> phase_calls_{};
  std::array<int64_t, engine::kNumPhases> op_ns_{};
  std::map<Key, KernelTotal> kernels_;
  std::vector<engine::TraceEvent> cold_steps_;
};

}  // namespace longspan::measure
