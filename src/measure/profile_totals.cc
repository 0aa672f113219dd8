#include "measure/profile_totals.h"

#include <algorithm>

namespace longspan::measure {
namespace {

using engine::TraceEvent;

constexpr size_t kMaxColdSteps = 100;  // that are kept one by one

}  // namespace

void WorkTotal::add(const TraceEvent& event) {
  const int64_t took = event.end_ns - event.begin_ns;
  ++calls;
  ns += took;
  if (event.op.bytes > 0) {
    bytes += event.op.bytes;
    bytes_ns += took;
  }
  if (event.op.flops > 0) {
    flops += event.op.flops;
    flops_ns += took;
  }
}

void ProfileTotals::add(const TraceEvent& event) {
  const auto phase = static_cast<size_t>(event.phase);
  ++num_events;
  switch (event.kind) {
    case TraceEvent::Kind::kPhase:
      // Phases lie end to end: the first begins the window, the last ends it.
      if (begin_ns_ == 0) begin_ns_ = event.begin_ns;
      end_ns_ = std::max(end_ns_, event.end_ns);
      phases_[phase] += event.end_ns - event.begin_ns;
      ++phase_calls_[phase];
      break;
    case TraceEvent::Kind::kOp: {
      const ops::OpWork& op = event.op;
      const bool product = op.kind == ops::OpKind::kMatmul || op.kind == ops::OpKind::kMatmulSwiGlu;
      KernelTotal& kernel =
          kernels_[{op.kind, op.op_class, op.path, op.decode, product ? op.n : 0, product ? op.k : 0}];
      if (kernel.name.empty()) {
        kernel.name = ops::name_of(op);
        kernel.op_class = op.op_class;
      }
      kernel.work.add(event);
      classes_[static_cast<size_t>(op.op_class)].add(event);
      op_ns_[phase] += event.end_ns - event.begin_ns;
      break;
    }
    case TraceEvent::Kind::kStep:
      ++num_steps;
      if (event.op.n == 0) ++num_prefill_steps;
      if (event.op.rows == 0) ++num_decode_steps;
      prompt_tokens += event.op.rows;
      decode_tokens += event.op.n;
      if (event.cold && cold_steps_.size() < kMaxColdSteps) cold_steps_.push_back(event);
      break;
    case TraceEvent::Kind::kAdmitted:
      ++(event.op.n == 1 ? num_requests_before : num_requests);
      break;
  }
}

std::vector<KernelTotal> ProfileTotals::kernels() const {
  std::vector<KernelTotal> rows;
  for (const auto& [key, kernel] : kernels_) rows.push_back(kernel);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const KernelTotal& a, const KernelTotal& b) { return a.work.ns > b.work.ns; });
  return rows;
}

}  // namespace longspan::measure
