#include "measure/profile_totals.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace longspan::measure {
namespace {

using engine::TraceEvent;

constexpr size_t kMaxColdSteps = 100;  // that are kept one by one

}  // namespace

void WorkTotal::add_call(const ops::OpWork& op) {
  ++calls;
  bytes += op.bytes;
  flops += op.flops;
}

void WorkTotal::add_time(int64_t took_ns, bool bytes_known, bool flops_known) {
  ns += took_ns;
  if (bytes_known) bytes_ns += took_ns;
  if (flops_known) flops_ns += took_ns;
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
      if (timing_ == OpTiming::kKernels) phase_spans_.push_back({event.begin_ns, event.end_ns, event.phase});
      break;
    case TraceEvent::Kind::kOp:
      add_op(event);
      break;
    case TraceEvent::Kind::kReplay:
      replays_.push_back({.first_call = event.call, .num_launches = {}});
      replay_left_ = event.op.rows;
      break;
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

void ProfileTotals::add_op(const TraceEvent& event) {
  const ops::OpWork& op = event.op;
  const bool product = op.kind == ops::OpKind::kMatmul || op.kind == ops::OpKind::kMatmulSwiGlu;
  KernelTotal& kernel =
      kernels_[{op.kind, op.op_class, op.path, op.decode, product ? op.n : 0, product ? op.k : 0}];
  if (kernel.name.empty()) {
    kernel.name = ops::name_of(op);
    kernel.op_class = op.op_class;
  }
  WorkTotal& of_class = classes_[static_cast<size_t>(op.op_class)];
  kernel.work.add_call(op);
  of_class.add_call(op);
  if (timing_ == OpTiming::kKernels) {
    calls_.push_back({event.call, op.bytes > 0, op.flops > 0, &kernel});
    if (replay_left_ > 0) {
      --replay_left_;
      replays_.back().num_launches.push_back(event.num_launches);
    }
    return;
  }
  const int64_t took_ns = event.end_ns - event.begin_ns;
  kernel.work.add_time(took_ns, op.bytes > 0, op.flops > 0);
  of_class.add_time(took_ns, op.bytes > 0, op.flops > 0);
  op_ns_[static_cast<size_t>(event.phase)] += took_ns;
}

KernelSpans ProfileTotals::add_kernels(std::vector<ops::device::KernelEvent> events,
                                       const std::vector<std::string>& names) {
  std::ranges::sort(calls_, {}, &Call::call);  // as they are, unless the file is odd
  KernelSpans device = spans_of(std::move(events), replays_, begin_ns_, end_ns_);
  for (const KernelSpan& span : device.spans) add_span(span);
  add_launches(device.spans, names);
  add_device_idle(device.spans);
  return device;
}

void ProfileTotals::add_span(const KernelSpan& span) {
  const int64_t took_ns = span.end_ns - span.begin_ns;
  if (const Call* call = find_call(span.call)) {
    for (WorkTotal* work : {&call->kernel->work, &classes_[static_cast<size_t>(call->kernel->op_class)]}) {
      work->add_time(took_ns, call->bytes_known, call->flops_known);
      ++work->launches;
    }
    return;
  }
  WorkTotal& work = span.is_copy ? copies_ : other_kernels_;
  work.add_time(took_ns, false, false);
  ++work.launches;
}

void ProfileTotals::add_launches(const std::vector<KernelSpan>& spans,
                                 const std::vector<std::string>& names) {
  std::map<std::string, LaunchTotal> by_name;
  for (const KernelSpan& span : spans) {
    const std::string name = span.is_copy ? "copy" : span.name < names.size() ? names[span.name] : "?";
    LaunchTotal& total = by_name[name];
    ++total.launches;
    total.ns += span.end_ns - span.begin_ns;
  }
  for (auto& [name, total] : by_name) {
    total.name = name;
    launches_.push_back(std::move(total));
  }
  std::ranges::stable_sort(launches_, std::greater<>(), &LaunchTotal::ns);
}

// Spans and phases both lie in order and never overlap: one walk over both.
void ProfileTotals::add_device_idle(const std::vector<KernelSpan>& spans) {
  auto span = spans.begin();
  for (const PhaseSpan& phase : phase_spans_) {
    int64_t idle_ns = phase.end_ns - phase.begin_ns;
    while (span != spans.end() && span->end_ns <= phase.begin_ns) ++span;
    for (auto in = span; in != spans.end() && in->begin_ns < phase.end_ns; ++in)
      idle_ns -=
          std::max<int64_t>(0, std::min(in->end_ns, phase.end_ns) - std::max(in->begin_ns, phase.begin_ns));
    device_idle_[static_cast<size_t>(phase.phase)] += std::max<int64_t>(0, idle_ns);
  }
}

const ProfileTotals::Call* ProfileTotals::find_call(uint32_t call) const {
  const auto at = std::ranges::lower_bound(calls_, call, {}, &Call::call);
  return call != 0 && at != calls_.end() && at->call == call ? &*at : nullptr;
}

const KernelTotal* ProfileTotals::kernel_of(const KernelSpan& span) const {
  const Call* const call = find_call(span.call);
  return call == nullptr ? nullptr : call->kernel;
}

int64_t ProfileTotals::idle_ns() const {
  if (timing_ == OpTiming::kCalls) return phase_ns(engine::Phase::kIdle);
  return std::accumulate(device_idle_.begin(), device_idle_.end(), int64_t{0});
}

std::vector<KernelTotal> ProfileTotals::kernels() const {
  std::vector<KernelTotal> rows;
  for (const auto& [key, kernel] : kernels_) rows.push_back(kernel);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const KernelTotal& a, const KernelTotal& b) { return a.work.ns > b.work.ns; });
  return rows;
}

}  // namespace longspan::measure
