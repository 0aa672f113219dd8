// Scheduler: who computes what in the next step. Pure bookkeeping over sequences, pages and states: no model,
// no device, no threads, no clock. Owned by the engine thread; never throws after construction.
//
//   scheduler.add(request);                             // any time between steps
//   const StepPlan& plan = scheduler.plan_step(limit);  // copy, run, sample
//   for (const Finished& f : scheduler.complete(sampled)) ...   // advance; then plan again
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/cache_memory.h"
#include "cache/page_plan.h"
#include "schedule/batch_rows.h"
#include "schedule/request.h"
#include "schedule/sequence.h"
#include "schedule/step_budget.h"
#include "schedule/step_plan.h"

namespace longspan::schedule {

inline constexpr int64_t kPriorityStep = 1000;  // arrivals that one level of priority is worth
inline constexpr int32_t kMaxPriority = 100;

struct SchedulerOptions {
  int32_t max_num_seqs = 128;             // rows; at most max_num_batched_tokens
  int64_t max_num_batched_tokens = 4096;  // tokens of a step; at least kGrid
  int64_t max_model_len = 32768;          // prompt and answer of a sequence
  int64_t max_waiting = 1024;             // requests beyond max_num_seqs
  bool reuse_decoded = false;             // keep what decode computed for the next turn: faster, not exact
  int64_t min_checkpoint_tokens = 512;    // state checkpoints lie at least this far apart
};

enum class Admission : uint8_t {
  kAccepted,
  kEmpty,      // no prompt token, or no token asked for
  kTooLong,    // prompt and answer exceed max_model_len
  kNeverFits,  // more pages than the cache has
  kQueueFull,  // max_num_seqs + max_waiting requests are live
  kDuplicate,  // the id is live
};

struct Sampled {
  SeqId id = 0;
  int32_t token = 0;
  bool stop = false;  // the answer ends with this token
};

enum class FinishReason : uint8_t { kStop, kLength };

struct Finished {
  SeqId id = 0;
  FinishReason reason = FinishReason::kStop;
  int64_t num_cached = 0;  // prompt tokens that came from the prefix index
};

struct SchedulerStats {
  int32_t num_running = 0;
  int32_t num_waiting = 0;  // new or to be replayed
  int32_t num_swapped = 0;
  int64_t num_steps = 0;
  int64_t num_prefill_tokens = 0;
  int64_t num_decode_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_swap_outs = 0;
  int64_t num_replays = 0;
  int64_t num_replayed_tokens = 0;      // known already, computed again
  int64_t num_skipped_checkpoints = 0;  // no page was free for one
};

class Scheduler {
 public:
  // Throws kInvalid on options that cannot work together.
  Scheduler(const cache::PagePlan& plan, const cache::CacheCapacity& capacity,
            const SchedulerOptions& options);

  Admission add(Request request);
  // `limit` holds in steps with decode rows: their streams wait for the prompts in it.
  // The plan is valid until the next call; an empty one, which needs no complete(), says: nothing to run.
  const StepPlan& plan_step(const PrefillLimit& limit = {});
  // The step was run: `sampled` has one entry for each row with sample set, in any order; a cancelled
  // sequence's may be missing. Returns who ended; valid until the next call.
  std::span<const Finished> complete(std::span<const Sampled> sampled);
  // Frees the sequence at once, or at the end of the step that is under way; it is not reported as finished.
  // False when the id is not live.
  bool cancel(SeqId id);

  bool has_work() const { return !sequences_.empty(); }
  const Sequence* find(SeqId id) const;                                   // null when not live
  cache::BlockTable& table(int32_t group) { return rows_.table(group); }  // for commit()
  const cache::BlockTable& table(int32_t group) const { return rows_.table(group); }
  const cache::CacheMemory& memory() const { return memory_; }
  cache::CacheMemory& memory() { return memory_; }
  SchedulerStats stats() const;

 private:
  // A checkpoint that the step under way writes.
  struct PendingCheckpoint {
    Sequence* seq = nullptr;
    cache::StateSlot state;
  };

  // scheduler.cc: the parts of plan_step, in order, and of complete.
  void begin_step(const PrefillLimit& limit);
  void pick_decodes(int64_t reserve);
  void pick_prefills();
  void extend_prefills();
  void emit_rows();
  void pick_decode(Sequence& seq);
  void pick_prefill(Sequence& seq, int64_t q_len);
  void note_starved();
  bool short_waits_behind_long() const;
  void plan_checkpoints(Sequence& seq, int64_t end);
  void advance();
  void append(const Sampled& sampled);
  void index_pages(Sequence& seq);
  bool indexed(const Sequence& seq) const { return seq.share_prefix && memory_.index() != nullptr; }
  void drop(SeqId id);

  // admit.cc: from waiting to running.
  void pick_admissions();
  bool admit(Sequence& seq);
  bool admit_waiting(Sequence& seq, bool use_index);
  bool admit_swapped(Sequence& seq);
  bool block(const Sequence& seq);
  bool may_wait_inside();
  void copy_hit(cache::PrefixHit hit, Sequence& seq);
  void start(Sequence& seq);

  // preempt.cc: from running to waiting.
  bool grow(Sequence& seq);
  void preempt(Sequence& seq);
  bool swap_out(Sequence& seq);
  void stop(Sequence& seq);

  cache::PagePlan plan_;
  SchedulerOptions options_;
  int64_t checkpoint_tokens_ = 0;  // states are kept at multiples of it, and at a prompt's last grid point
  cache::CacheMemory memory_;
  BatchRows rows_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;  // all live ones
  std::map<Rank, Sequence*> waiting_;                               // kWaiting and kSwapped
  std::map<Rank, Sequence*> running_;
  const Sequence* blocked_ = nullptr;  // first in waiting_, and no room for it until somebody stops
  int64_t num_arrivals_ = 0;

  // The step under way.
  StepPlan step_;
  bool in_step_ = false;
  bool preempted_ = false;        // in this step: then nobody is admitted
  bool prefill_starved_ = false;  // decode rows left no room for a grid chunk: the next step reserves it
  StepBudget budget_;
  std::vector<Sequence*> order_;  // running_ when the step began
  size_t next_decode_ = 0;        // in order_
  std::vector<Pick> decodes_;
  std::vector<Pick> prefills_;
  std::vector<PendingCheckpoint> checkpoints_;
  std::vector<cache::Page> held_;  // sources of the step's copies
  std::vector<SeqId> cancelled_;
  std::vector<Finished> finished_;
  SchedulerStats stats_;
};

}  // namespace longspan::schedule
