#include "engine/step_trace.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace longspan::engine {
namespace {

constexpr size_t kStepRoom = kBlockEvents / 4;  // events that a step may make
constexpr int64_t kHandOverNs = 500'000'000;    // what a killed server loses at most
constexpr size_t kSpareBlocks = 2;              // made in advance

std::vector<TraceEvent> new_block() {
  std::vector<TraceEvent> block;
  block.reserve(kBlockEvents);
  return block;
}

}  // namespace

std::string_view to_string(Phase phase) {
  constexpr std::array<std::string_view, kNumPhases> kNames = {
      "idle", "scheduling", "cache copies", "input preparation", "forward", "sampling", "publishing"};
  return kNames[static_cast<size_t>(phase)];
}

StepTrace::StepTrace(int64_t max_events, std::shared_ptr<ops::device::KernelClock> clock)
    : max_events_(max_events), clock_(std::move(clock)), block_(new_block()) {
  full_blocks_.reserve(kMaxBlocks);
  for (size_t i = 0; i < kSpareBlocks; ++i) free_blocks_.push_back(new_block());
}

// ---- engine thread ----

void StepTrace::begin() {
  active_ = true;
  phase_ = Phase::kScheduling;
  phase_began_ns_ = handed_over_ns_ = ops::steady_ns();
  close_phase(phase_began_ns_);  // of no length: the first event says when the window began
}

void StepTrace::enter(Phase phase) {
  if (!active_) return;
  const int64_t now_ns = ops::steady_ns();
  close_phase(now_ns);
  phase_ = phase;
  phase_began_ns_ = now_ns;
}

void StepTrace::before_op() {
  if (clock_ != nullptr) clock_->open(next_call_);
}

void StepTrace::on_op(const ops::OpWork& work, int64_t begin_ns, int64_t end_ns) {
  if (clock_ != nullptr) clock_->close();
  if (!active_) return;
  add({.begin_ns = begin_ns,
       .end_ns = end_ns,
       .op = work,
       .kind = TraceEvent::Kind::kOp,
       .phase = phase_,
       .call = clock_ == nullptr ? 0 : next_call_++});
}

void StepTrace::on_replay(std::span<const ops::RecordedOp> ops, int64_t begin_ns, int64_t end_ns) {
  if (clock_ != nullptr) clock_->close();
  if (!active_ || clock_ == nullptr || ops.empty()) return;
  add({.begin_ns = begin_ns,
       .end_ns = end_ns,
       .op = {.rows = static_cast<int32_t>(ops.size())},
       .kind = TraceEvent::Kind::kReplay,
       .phase = phase_,
       .call = next_call_});
  for (const ops::RecordedOp& op : ops)
    add({.begin_ns = begin_ns,
         .end_ns = begin_ns,
         .op = op.work,
         .kind = TraceEvent::Kind::kOp,
         .phase = phase_,
         .num_launches = static_cast<uint8_t>(std::min(op.num_launches, Index{UINT8_MAX})),
         .call = next_call_++});
}

void StepTrace::admitted(int64_t prompt_tokens, bool before_window) {
  if (!active_) return;
  const int64_t now_ns = ops::steady_ns();
  add({.begin_ns = now_ns,
       .end_ns = now_ns,
       .op = {.rows = static_cast<int32_t>(prompt_tokens), .n = before_window ? 1 : 0},
       .kind = TraceEvent::Kind::kAdmitted,
       .phase = phase_});
}

void StepTrace::step_done(const StepShape& shape, int64_t begin_ns) {
  if (!active_) return;
  const int64_t now_ns = ops::steady_ns();
  add({.begin_ns = begin_ns,
       .end_ns = now_ns,
       .op = {.rows = static_cast<int32_t>(shape.prompt_tokens),
              .n = static_cast<int32_t>(shape.decode_tokens),
              .k = static_cast<int32_t>(shape.num_seqs)},
       .kind = TraceEvent::Kind::kStep,
       .phase = phase_,
       .cold = shape.cold});
  if (num_events_ >= max_events_) {
    end();
    const std::lock_guard lock(mutex_);
    full_ = true;
  } else if (block_.size() + kStepRoom > kBlockEvents || now_ns - handed_over_ns_ > kHandOverNs) {
    hand_over();
  }
}

void StepTrace::idle() {
  if (!active_) return;
  enter(Phase::kIdle);
  hand_over();
}

void StepTrace::end() {
  if (!active_) return;
  close_phase(ops::steady_ns());
  active_ = false;
  hand_over();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

void StepTrace::add(const TraceEvent& event) {
  if (block_.size() == kBlockEvents) {
    ++lost_here_;
    return;
  }
  block_.push_back(event);
  ++num_events_;
}

void StepTrace::close_phase(int64_t now_ns) {
  add({.begin_ns = phase_began_ns_, .end_ns = now_ns, .kind = TraceEvent::Kind::kPhase, .phase = phase_});
}

void StepTrace::hand_over() {
  handed_over_ns_ = ops::steady_ns();
  {
    const std::lock_guard lock(mutex_);
    num_lost_ += std::exchange(lost_here_, 0);
    if (block_.empty()) return;
    if (full_blocks_.size() == kMaxBlocks) {  // the writer is behind: what it has not seen yet stays
      num_lost_ += std::ssize(block_);
      block_.clear();
      return;
    }
    full_blocks_.push_back(std::move(block_));
    if (free_blocks_.empty()) {
      block_ = new_block();
    } else {
      block_ = std::move(free_blocks_.back());
      free_blocks_.pop_back();
    }
  }
  changed_.notify_all();
}

// ---- writer ----

std::vector<TraceEvent> StepTrace::take(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !full_blocks_.empty() || ended_; });
  if (full_blocks_.empty()) return {};
  std::vector<TraceEvent> block = std::move(full_blocks_.front());
  full_blocks_.erase(full_blocks_.begin());
  return block;
}

void StepTrace::give_back(std::vector<TraceEvent> block) {
  block.clear();
  const std::lock_guard lock(mutex_);
  if (free_blocks_.size() < kMaxBlocks) free_blocks_.push_back(std::move(block));
}

bool StepTrace::done() const {
  const std::lock_guard lock(mutex_);
  return ended_ && full_blocks_.empty();
}

int64_t StepTrace::num_lost() const {
  const std::lock_guard lock(mutex_);
  return num_lost_;
}

bool StepTrace::full() const {
  const std::lock_guard lock(mutex_);
  return full_;
}

}  // namespace longspan::engine
