// The step: pick decode rows, then prefill chunks, then newcomers; put them in rows; afterwards advance them.
#include "schedule/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace longspan::schedule {
namespace {

void check(const SchedulerOptions& options) {
  if (options.max_num_batched_tokens < kGrid)
    fail(ErrorKind::kInvalid, "[scheduler] max_num_batched_tokens is {}, need at least {}",
         options.max_num_batched_tokens, kGrid);
  if (options.max_num_seqs < 1 || options.max_num_seqs > options.max_num_batched_tokens)
    fail(ErrorKind::kInvalid, "[scheduler] max_num_seqs is {}, need 1 to {} (max_num_batched_tokens)",
         options.max_num_seqs, options.max_num_batched_tokens);
  if (options.max_model_len < 2)
    fail(ErrorKind::kInvalid, "[scheduler] max_model_len is {}, need at least 2", options.max_model_len);
}

}  // namespace

Scheduler::Scheduler(const cache::PagePlan& plan, const cache::CacheCapacity& capacity,
                     const SchedulerOptions& options)
    : plan_(plan),
      options_((check(options), options)),
      memory_(plan, capacity),
      rows_(plan, options.max_num_seqs, options.max_model_len) {
  const int64_t boundary = std::lcm(plan.page_tokens, kGrid);  // 832: every page; 784: every fourth
  checkpoint_tokens_ =
      boundary * std::max<int64_t>(1, (options.min_checkpoint_tokens + boundary - 1) / boundary);
  const size_t num_rows = static_cast<size_t>(options.max_num_seqs);
  order_.reserve(num_rows);
  decodes_.reserve(num_rows);
  prefills_.reserve(num_rows);
  finished_.reserve(num_rows);
  step_.seqs.reserve(num_rows);
  step_.checkpoints.resize(plan.groups.size());
}

Admission Scheduler::add(Request request) {
  const int64_t num_prompt = std::ssize(request.prompt);
  if (num_prompt == 0 || request.max_new_tokens < 1) return Admission::kEmpty;
  if (request.max_new_tokens > options_.max_model_len - num_prompt) return Admission::kTooLong;
  if (!memory_.can_ever_fit(plan_.pages_for(num_prompt + request.max_new_tokens), 1))
    return Admission::kNeverFits;
  if (sequences_.contains(request.id)) return Admission::kDuplicate;
  if (std::ssize(sequences_) >= options_.max_num_seqs + options_.max_waiting) return Admission::kQueueFull;

  auto seq = std::make_unique<Sequence>();
  seq->id = request.id;
  seq->tokens = std::move(request.prompt);
  seq->num_prompt = num_prompt;
  seq->max_new_tokens = request.max_new_tokens;
  seq->cache_salt = std::move(request.cache_salt);
  seq->share_prefix = request.share_prefix;
  const int64_t priority = std::clamp(request.priority, -kMaxPriority, kMaxPriority);
  seq->rank = {.key = num_arrivals_ + priority * kPriorityStep, .arrival = num_arrivals_};
  ++num_arrivals_;
  waiting_.emplace(seq->rank, seq.get());
  sequences_.emplace(seq->id, std::move(seq));
  return Admission::kAccepted;
}

// ---- Planning.

const StepPlan& Scheduler::plan_step(const PrefillLimit& limit) {
  CHECK_MSG(!in_step_, "[scheduler] plan_step before complete");
  begin_step(limit);
  // Where decode rows fill the budget, every other step keeps one grid chunk free for whoever prefills.
  pick_decodes(std::exchange(prefill_starved_, false) ? kGrid : 0);
  pick_prefills();
  if (!preempted_) pick_admissions();
  extend_prefills();
  // Nobody took it: who was to prefill has been cancelled, or finds no pages.
  if (prefills_.empty() && step_.swap_in.empty()) pick_decodes(0);
  rows_.gather(decodes_, 0);
  rows_.gather(prefills_, static_cast<int32_t>(decodes_.size()));
  emit_rows();
  CHECK_MSG(!step_.seqs.empty() || !preempted_, "[scheduler] preempted the only sequence");
  in_step_ = !step_.seqs.empty();
  stats_.num_steps += in_step_;
  return step_;
}

void Scheduler::begin_step(const PrefillLimit& limit) {
  step_.swap_out.clear();
  step_.swap_in.clear();
  step_.copies.clear();
  step_.seqs.clear();
  step_.num_decode_seqs = 0;
  step_.num_tokens = 0;
  for (std::vector<CheckpointWrite>& writes : step_.checkpoints) writes.clear();
  decodes_.clear();
  prefills_.clear();
  preempted_ = false;
  order_.clear();
  next_decode_ = 0;
  for (const auto& [rank, seq] : running_) order_.push_back(seq);

  const bool any_decode =
      std::any_of(order_.begin(), order_.end(), [](const Sequence* seq) { return !seq->in_prefill(); });
  budget_ = StepBudget(options_.max_num_batched_tokens, any_decode ? limit : PrefillLimit());
}

// Decode rows, best rank first, while more than `reserve` tokens are left. A second call goes on from there.
void Scheduler::pick_decodes(int64_t reserve) {
  for (; next_decode_ < order_.size() && budget_.left() > reserve; ++next_decode_) {
    Sequence& seq = *order_[next_decode_];
    if (seq.status != SeqStatus::kRunning || seq.in_prefill() || !grow(seq)) continue;
    pick_decode(seq);
  }
}

void Scheduler::pick_decode(Sequence& seq) {
  decodes_.push_back({&seq, 1});
  budget_.take_decode();
}

void Scheduler::pick_prefills() {
  budget_.close_decodes();
  if (short_waits_behind_long()) budget_.keep_room_for_short();
  for (Sequence* seq : order_)
    if (seq->status == SeqStatus::kRunning && seq->in_prefill())
      pick_prefill(*seq, budget_.chunk(seq->num_computed, seq->num_prompt));
}

bool Scheduler::short_waits_behind_long() const {
  bool any_long = false;
  const auto is_behind = [&](const auto& entry) {
    const Sequence& seq = *entry.second;
    if (!seq.in_prefill()) return false;
    const bool is_short = budget_.is_short(seq.num_computed, seq.num_prompt);
    any_long = any_long || !is_short;
    return is_short && any_long;
  };
  if (std::any_of(running_.begin(), running_.end(), is_behind)) return true;
  if (std::ssize(running_) == options_.max_num_seqs) return false;  // nobody can come in
  return std::any_of(waiting_.begin(), waiting_.end(), is_behind);
}

void Scheduler::pick_prefill(Sequence& seq, int64_t q_len) {
  if (q_len == 0) {
    note_starved();
    return;
  }
  prefills_.push_back({&seq, static_cast<int32_t>(q_len)});
  budget_.take_chunk(seq.num_computed, seq.num_prompt, q_len);
}

// The first in order found no room for a grid chunk beside the decode rows.
void Scheduler::note_starved() {
  if (prefills_.empty() && !decodes_.empty()) prefill_starved_ = true;
}

// What no short prompt took makes the chunks of the long ones longer.
void Scheduler::extend_prefills() {
  budget_.give_kept_room();
  for (Pick& pick : prefills_) {
    const int64_t begin = pick.seq->num_computed + pick.q_len;
    const int64_t more = budget_.chunk(begin, pick.seq->num_prompt);
    pick.q_len += static_cast<int32_t>(more);
    budget_.take_chunk(begin, pick.seq->num_prompt, more);
  }
}

void Scheduler::emit_rows() {
  step_.num_decode_seqs = static_cast<int32_t>(decodes_.size());
  step_.seqs.resize(decodes_.size() + prefills_.size());
  const auto emit = [&](const Pick& pick, bool is_prefill) {
    const Sequence& seq = *pick.seq;
    const int64_t end = seq.num_computed + pick.q_len;
    const std::span<const int32_t> tokens = seq.tokens;
    step_.seqs[static_cast<size_t>(seq.row)] = {
        .id = seq.id,
        .q_len = pick.q_len,
        .context_len = static_cast<int32_t>(seq.num_computed),
        .is_prefill = is_prefill,
        .sample = end == seq.num_tokens(),
        .tokens = tokens.subspan(static_cast<size_t>(seq.num_computed), static_cast<size_t>(pick.q_len))};
    step_.num_tokens += pick.q_len;
    (is_prefill ? stats_.num_prefill_tokens : stats_.num_decode_tokens) += pick.q_len;
    stats_.num_replayed_tokens += std::max<int64_t>(std::min(end, seq.num_known) - seq.num_computed, 0);
  };
  for (const Pick& pick : decodes_) emit(pick, /*is_prefill=*/false);
  for (const Pick& pick : prefills_) {
    emit(pick, /*is_prefill=*/true);
    plan_checkpoints(*pick.seq, pick.seq->num_computed + pick.q_len);
  }
}

// States worth keeping in the chunk that ends at `end`. A checkpoint is a luxury: no page, no checkpoint.
// Only the last of a prompt, which serves the same prompt again, may cost others their pages.
void Scheduler::plan_checkpoints(Sequence& seq, int64_t end) {
  if (!indexed(seq) || plan_.num_state_groups() == 0) return;
  // The last one that leaves the same prompt, should it come again, a token to compute.
  const int64_t last_grid = floor_grid(seq.num_prompt - 1);
  for (int64_t at = floor_grid(seq.num_computed) + kGrid; at <= end; at += kGrid) {
    if (at % checkpoint_tokens_ != 0 && at != last_grid) continue;
    std::optional<cache::StateSlot> state =
        at == last_grid ? memory_.allocate_state() : memory_.allocate_checkpoint();
    if (!state) {
      ++stats_.num_skipped_checkpoints;
      continue;
    }
    state->num_tokens = at;
    for (size_t i = 0; i < state->pages.size(); ++i)
      step_.checkpoints[i + 1].push_back(
          {.row = seq.row, .num_tokens = static_cast<int32_t>(at), .page = state->pages[i].id()});
    checkpoints_.push_back({&seq, std::move(*state)});
  }
}

// ---- After the step.

std::span<const Finished> Scheduler::complete(std::span<const Sampled> sampled) {
  finished_.clear();
  if (!in_step_) return finished_;
  in_step_ = false;
  held_.clear();
  advance();
  for (const Sampled& token : sampled) append(token);
  for (const SeqId id : cancelled_) drop(id);
  cancelled_.clear();
  for (const auto& [rank, seq] : running_)
    CHECK_MSG(seq->num_computed < seq->num_tokens(), "[scheduler] sequence {} got no token", seq->id);
  return finished_;
}

// What the step computed is in the cache now.
void Scheduler::advance() {
  for (const std::vector<Pick>* picks : {&decodes_, &prefills_}) {
    for (const Pick& pick : *picks) {
      pick.seq->num_computed += pick.q_len;
      pick.seq->state.num_tokens = pick.seq->num_computed;
    }
  }
  for (PendingCheckpoint& checkpoint : checkpoints_) {
    const Sequence& seq = *checkpoint.seq;
    const std::span<const int32_t> tokens = seq.tokens;
    const size_t num_tokens = static_cast<size_t>(checkpoint.state.num_tokens);
    memory_.index()->insert(seq.cache_salt, tokens.first(num_tokens), seq.pages, std::move(checkpoint.state));
  }
  checkpoints_.clear();
  for (const Pick& pick : prefills_)
    if (indexed(*pick.seq)) index_pages(*pick.seq);
}

// Tells the index of the prompt's full pages. Beyond the last grid point a hybrid prompt was computed in a
// cut-off chunk, which another prompt would not have: that is not shared.
void Scheduler::index_pages(Sequence& seq) {
  const bool has_state = plan_.num_state_groups() > 0;
  const int64_t exact = std::min(seq.num_computed, has_state ? floor_grid(seq.num_prompt) : seq.num_prompt);
  const int64_t full = exact / plan_.page_tokens * plan_.page_tokens;
  if (full <= seq.num_indexed) return;
  const std::span<const int32_t> tokens = seq.tokens;
  memory_.index()->insert(seq.cache_salt, tokens.first(static_cast<size_t>(full)), seq.pages);
  seq.num_indexed = full;
}

void Scheduler::append(const Sampled& sampled) {
  const auto entry = sequences_.find(sampled.id);
  if (entry == sequences_.end() || entry->second->cancelled) return;
  Sequence& seq = *entry->second;
  CHECK_MSG(seq.status == SeqStatus::kRunning && seq.num_computed == seq.num_tokens(),
            "[scheduler] a token for sequence {}, which did not ask for one", seq.id);
  seq.tokens.push_back(sampled.token);
  const bool is_full = seq.num_generated() == seq.max_new_tokens;
  if (!sampled.stop && !is_full) return;
  if (options_.reuse_decoded && indexed(seq)) {
    const std::span<const int32_t> computed =
        std::span<const int32_t>(seq.tokens).first(static_cast<size_t>(seq.num_computed));
    memory_.index()->insert(seq.cache_salt, computed, seq.pages, std::move(seq.state));
  }
  const FinishReason reason = sampled.stop ? FinishReason::kStop : FinishReason::kLength;
  finished_.push_back({.id = seq.id, .reason = reason, .num_cached = seq.num_cached});
  drop(seq.id);
}

// ---- The end of a sequence.

bool Scheduler::cancel(SeqId id) {
  const auto entry = sequences_.find(id);
  if (entry == sequences_.end() || entry->second->cancelled) return false;
  if (!in_step_) {
    drop(id);
    return true;
  }
  entry->second->cancelled = true;  // the device may be writing its pages
  cancelled_.push_back(id);
  return true;
}

void Scheduler::drop(SeqId id) {
  const auto entry = sequences_.find(id);
  Sequence& seq = *entry->second;
  if (seq.status == SeqStatus::kRunning) stop(seq);
  waiting_.erase(seq.rank);
  sequences_.erase(entry);  // the handles free its pages
  blocked_ = nullptr;
}

const Sequence* Scheduler::find(SeqId id) const {
  const auto entry = sequences_.find(id);
  return entry == sequences_.end() ? nullptr : entry->second.get();
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.num_running = static_cast<int32_t>(running_.size());
  for (const auto& [rank, seq] : waiting_)
    ++(seq->status == SeqStatus::kSwapped ? stats.num_swapped : stats.num_waiting);
  return stats;
}

}  // namespace longspan::schedule
