// An engine without a model: it moves numbers through simulated pages exactly as a StepPlan says, and its
// answers depend on every one of them. A page lost, shared by mistake, overwritten, copied too late or
// computed in another chunk changes some answer; solo_answer() says what each answer must be.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cache/page_plan.h"
#include "schedule/scheduler.h"

namespace longspan::schedule {

using Tokens = std::vector<int32_t>;

// A small hybrid model: pages of `page_tokens` (a multiple of 16), two attention and four state layers.
struct SimulatedModel {
  cache::Layout layout = cache::Layout::kUnified;
  int64_t page_tokens = 64;
  bool prefix_caching = false;
  bool has_state = true;
};
cache::PagePlan plan_of(const SimulatedModel& model);

// What `prompt` is answered with when nothing else runs: no pages, no chunks, no scheduler. Ends after
// max_new_tokens or with a stop token.
Tokens solo_answer(const Tokens& prompt, int64_t max_new_tokens, bool has_state);
bool is_stop(int32_t token);

class SimulatedEngine {
 public:
  SimulatedEngine(const SimulatedModel& model, const cache::CacheCapacity& capacity,
                  const SchedulerOptions& options);

  Scheduler& scheduler() { return scheduler_; }
  // Plans, checks and runs; the caller may look, and cancel, before finish_step(). False: nothing to run.
  bool begin_step(const PrefillLimit& limit = {});
  std::span<const Finished> finish_step();
  void step() {
    if (begin_step()) finish_step();
  }
  void run_all();  // until no work is left; fails after a million steps
  const StepPlan& plan() const { return *plan_; }
  const Tokens& answer(SeqId id) { return answers_[id]; }
  bool is_finished(SeqId id) const { return finished_.contains(id); }
  int64_t num_cached(SeqId id) const { return finished_.at(id).num_cached; }

 private:
  struct State {
    int64_t num_tokens = 0;
    uint64_t value = 0;
  };
  struct PageContent {
    std::vector<uint64_t> kv;  // [page_tokens]
    State state;
  };
  using Pool = std::vector<PageContent>;

  struct Device {
    Pool pages;
    Pool slots;  // split layout only
  };

  PageContent& page_of(Device& device, int32_t group, int32_t page);
  void check_plan() const;
  void check_writes() const;
  void move_pages();
  void commit_tables();
  void run_row(int32_t row);
  State read_state(int32_t row, int64_t context_len);
  uint64_t& kv_at(int32_t row, int64_t position);

  cache::PagePlan page_plan_;
  SchedulerOptions options_;
  Scheduler scheduler_;
  Device device_;
  Device host_;
  std::vector<std::vector<int32_t>> tables_;  // [num_groups][max_num_seqs * columns]: the device's copies
  const StepPlan* plan_ = nullptr;
  std::vector<Sampled> sampled_;
  std::map<SeqId, Tokens> answers_;
  std::map<SeqId, Finished> finished_;
  PrefillLimit limit_;

  struct Progress {
    int64_t num_computed = 0;
    int32_t num_replays = 0;
    int64_t last_step = 0;
    bool decoding = false;
  };
  std::map<SeqId, Progress> progress_;
  int64_t num_steps_ = 0;

  void check_progress();
};

}  // namespace longspan::schedule
