// StepTrace: what the engine thread did in one window of time: its phases without a gap, every operation
// inside them, each step's shape. With a kernel clock each operation has a number, which the clock hears too:
// what the device did for it comes from there. Knows no files: another thread takes full blocks and writes
// them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "ops/device/kernel_clock.h"
#include "ops/observed_backend.h"

namespace longspan::engine {

// What the engine thread is at. One begins where the last one ends.
enum class Phase : uint8_t {
  kIdle,        // it waits for a request
  kScheduling,  // arrivals, the plan of the next step
  kCopies,      // cache pages that move
  kInputs,      // the arrays of a step
  kForward,     // the model
  kSampling,    // logits to tokens
  kPublishing   // tokens and progress to those who wait, what the step changed
};
inline constexpr size_t kNumPhases = 7;
std::string_view to_string(Phase phase);  // "input preparation"

// One line of a trace. Times are of the steady clock.
struct TraceEvent {
  enum class Kind : uint8_t {
    kPhase,     // phase
    kOp,        // op, all of it; phase: the one it ran in
    kStep,      // begin to end; rows prompt tokens, n decode tokens, k sequences, cold
    kAdmitted,  // a request with a prompt of `rows` tokens; n 1: it was there when the window began
    kReplay     // of `rows` operations, which follow: their calls are `call`, `call` + 1, ...
  };
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  ops::OpWork op;
  Kind kind = Kind::kPhase;
  Phase phase = Phase::kIdle;
  // Of a step: more prompt tokens, or more sequences that decode, than in any step before it. Memory is
  // touched and workspaces grow in such a step; its times are not those of the next one.
  bool cold = false;
  uint8_t num_launches = 0;  // of an operation in a replay: what it puts to the device
  uint32_t call = 0;         // of an operation: its number for the kernel clock, from 1 on; 0: there is none
};

struct StepShape {
  int64_t prompt_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t num_seqs = 0;
  bool cold = false;
};

inline constexpr int64_t kMaxTraceEvents = 16'000'000;  // then the window ends by itself
inline constexpr size_t kBlockEvents = 32768;
inline constexpr size_t kMaxBlocks = 8;  // that wait for their writer; then events are lost, and counted

class StepTrace final : public ops::OpObserver {
 public:
  // The clock runs; who made it takes its events and stops it.
  explicit StepTrace(int64_t max_events = kMaxTraceEvents,
                     std::shared_ptr<ops::device::KernelClock> clock = nullptr);

  // Else an operation is what its launch is, and replays cannot be looked into.
  bool times_kernels() const { return clock_ != nullptr; }

  // The engine thread's, in this order: begin, then phases, operations and steps, then end. Only step_done()
  // and idle() hand blocks over, and only they may take memory.
  void begin();
  void enter(Phase phase);
  void before_op() override;
  void on_op(const ops::OpWork& work, int64_t begin_ns, int64_t end_ns) override;
  void on_replay(std::span<const ops::RecordedOp> ops, int64_t begin_ns, int64_t end_ns) override;
  void admitted(int64_t prompt_tokens, bool before_window);
  void step_done(const StepShape& shape, int64_t begin_ns);
  void idle();  // the thread goes to sleep: what there is goes to the writer
  void end();

  // The writer's. The next block, oldest first; empty when none came in time, or none will.
  std::vector<TraceEvent> take(std::chrono::milliseconds timeout);
  void give_back(std::vector<TraceEvent> block);  // its memory, for the blocks to come
  bool done() const;                              // ended, and every block taken

  int64_t num_lost() const;  // events that found no room
  bool full() const;         // it ended by itself

 private:
  void add(const TraceEvent& event);
  void close_phase(int64_t now_ns);
  void hand_over();

  // Engine thread only.
  const int64_t max_events_;
  const std::shared_ptr<ops::device::KernelClock> clock_;  // or null
  uint32_t next_call_ = 1;
  std::vector<TraceEvent> block_;
  int64_t num_events_ = 0;
  int64_t lost_here_ = 0;
  Phase phase_ = Phase::kScheduling;
  int64_t phase_began_ns_ = 0;
  int64_t handed_over_ns_ = 0;
  bool active_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<TraceEvent>> full_blocks_;  // guarded by mutex_, as all below; oldest first
  std::vector<std::vector<TraceEvent>> free_blocks_;
  int64_t num_lost_ = 0;
  bool ended_ = false;
  bool full_ = false;
};

}  // namespace longspan::engine
