#include "schedule/simulated_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace longspan::schedule {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

// The recurrence. `how` stands for the rounding: decode and prefill differ, and so does a prefill in a
// 64-token cell of another length.
constexpr uint64_t kDecode = 1000;
uint64_t advance(uint64_t state, int32_t token, uint64_t how) {
  return mix(mix(state, how), static_cast<uint64_t>(token));
}

uint64_t cell_of(int64_t position, int64_t begin, int64_t end) {
  const int64_t cell_begin = std::max(position / kGrid * kGrid, begin);
  const int64_t cell_end = std::min(position / kGrid * kGrid + kGrid, end);
  return static_cast<uint64_t>(cell_end - cell_begin);
}

int32_t token_of(uint64_t state, uint64_t kv_sum) { return static_cast<int32_t>(mix(state, kv_sum) % 1000); }

}  // namespace

bool is_stop(int32_t token) { return token < 2; }  // one in 500

Tokens solo_answer(const Tokens& prompt, int64_t max_new_tokens, bool has_state) {
  Tokens answer;
  uint64_t state = 0, kv_sum = 0;
  for (int64_t i = 0; i < std::ssize(prompt); ++i) {
    state = advance(state, prompt[static_cast<size_t>(i)], has_state ? cell_of(i, 0, std::ssize(prompt)) : 0);
    kv_sum += state;
  }
  while (true) {
    answer.push_back(token_of(state, kv_sum));
    if (std::ssize(answer) == max_new_tokens || is_stop(answer.back())) return answer;
    state = advance(state, answer.back(), kDecode);
    kv_sum += state;
  }
}

cache::PagePlan plan_of(const SimulatedModel& model) {
  using cache::LayerKind;
  cache::CacheSpec spec;
  const LayerKind s = LayerKind::kState, a = LayerKind::kAttention;
  spec.layers = model.has_state ? std::vector<LayerKind>{s, s, a, s, s, a} : std::vector<LayerKind>{a, a};
  spec.num_kv_heads = 1;
  spec.head_dim = 16;  // 64 B per token
  spec.conv_kernel = 4;
  spec.conv_dim = 8;
  spec.num_v_heads = 1;
  spec.v_dim = 8;
  spec.k_dim = 8;  // a state of 304 B: less than a page of 16
  return cache::plan_pages(spec, {.alignment = 16,
                                  .layout = model.layout,
                                  .prefix_caching = model.prefix_caching,
                                  .state_chunk = 16,
                                  .min_page_tokens = model.page_tokens,
                                  .target_page_tokens = model.page_tokens});
}

SimulatedEngine::SimulatedEngine(const SimulatedModel& model, const cache::CacheCapacity& capacity,
                                 const SchedulerOptions& options)
    : page_plan_(plan_of(model)), options_(options), scheduler_(page_plan_, capacity, options) {
  const PageContent blank{.kv = std::vector<uint64_t>(static_cast<size_t>(model.page_tokens), 0xdead),
                          .state = {-1, 0}};
  device_.pages.resize(static_cast<size_t>(capacity.num_pages), blank);
  device_.slots.resize(static_cast<size_t>(capacity.num_state_slots), blank);
  host_.pages.resize(static_cast<size_t>(capacity.num_host_pages), blank);
  host_.slots.resize(static_cast<size_t>(capacity.num_host_slots), blank);
  for (size_t group = 0; group < page_plan_.groups.size(); ++group) {
    const cache::BlockTable& table = scheduler_.table(static_cast<int32_t>(group));
    tables_.emplace_back(static_cast<size_t>(table.num_rows() * table.num_columns()), 777777);
  }
}

bool SimulatedEngine::begin_step(const PrefillLimit& limit) {
  limit_ = limit;
  plan_ = &scheduler_.plan_step(limit);
  if (plan_->empty()) return false;
  ++num_steps_;
  check_plan();
  check_progress();
  move_pages();
  commit_tables();
  check_writes();
  sampled_.clear();
  for (int32_t row = 0; row < static_cast<int32_t>(plan_->seqs.size()); ++row) run_row(row);
  return true;
}

std::span<const Finished> SimulatedEngine::finish_step() {
  const std::span<const Finished> finished = scheduler_.complete(sampled_);
  for (const Finished& done : finished) finished_.emplace(done.id, done);
  return finished;
}

void SimulatedEngine::run_all() {
  for (int i = 0; i < 1000000 && scheduler_.has_work(); ++i) {
    if (!begin_step()) break;
    finish_step();
  }
  EXPECT_FALSE(scheduler_.has_work()) << "work is left, and the plan is empty";
}

// ---- What must hold for every plan.

void SimulatedEngine::check_plan() const {
  const StepPlan& plan = *plan_;
  ASSERT_LE(std::ssize(plan.seqs), options_.max_num_seqs);
  int64_t num_tokens = 0, num_prefill_tokens = 0;
  double prefill_ms = 0;
  std::set<SeqId> ids;
  for (int32_t row = 0; row < static_cast<int32_t>(plan.seqs.size()); ++row) {
    const PlannedSeq& seq = plan.seqs[static_cast<size_t>(row)];
    const Sequence* known = scheduler_.find(seq.id);
    ASSERT_NE(known, nullptr);
    EXPECT_EQ(known->row, row);
    EXPECT_TRUE(ids.insert(seq.id).second) << "scheduled twice in a step";
    EXPECT_GT(seq.q_len, 0);
    EXPECT_EQ(std::ssize(seq.tokens), seq.q_len);
    EXPECT_EQ(seq.is_prefill, row >= plan.num_decode_seqs) << "decode rows come first";
    EXPECT_EQ(seq.is_prefill, seq.context_len < known->num_prompt);
    const int64_t end = seq.context_len + seq.q_len;
    if (seq.is_prefill) {
      EXPECT_TRUE(end % kGrid == 0 || end == known->num_prompt) << "chunk ends at " << end;
      num_prefill_tokens += seq.q_len;
      prefill_ms += limit_.cost(seq.context_len, seq.q_len);
    } else {
      EXPECT_EQ(seq.q_len, 1);
    }
    EXPECT_EQ(seq.sample, end == known->num_tokens());
    num_tokens += seq.q_len;
  }
  EXPECT_EQ(num_tokens, plan.num_tokens);
  EXPECT_TRUE(plan.swap_out.empty() || (plan.swap_in.empty() && plan.copies.empty()))
      << "pages change hands twice";
  EXPECT_LE(num_tokens, options_.max_num_batched_tokens);
  // A stream that comes back from the host in this very step has waited anyway.
  if (plan.num_decode_seqs > 0 && plan.swap_in.empty() && limit_.ms > 0)
    EXPECT_TRUE(prefill_ms <= limit_.ms * (1 + 1e-9) || num_prefill_tokens <= kGrid)
        << num_prefill_tokens << " tokens take " << prefill_ms << " of " << limit_.ms << " ms";
}

// Every token is scheduled once, in order; only a replay goes back. A stream misses at most one step in two.
void SimulatedEngine::check_progress() {
  for (const PlannedSeq& seq : plan_->seqs) {
    const Sequence& known = *scheduler_.find(seq.id);
    Progress& progress = progress_[seq.id];
    const bool goes_on = progress.num_replays == known.num_replays && progress.last_step > 0;
    EXPECT_TRUE(!goes_on || seq.context_len == progress.num_computed) << "a token is left out or comes twice";
    progress.num_replays = known.num_replays;
    progress.num_computed = seq.context_len + seq.q_len;
    progress.last_step = num_steps_;
    progress.decoding = progress.num_computed >= known.num_prompt;
  }
  for (auto& [id, progress] : progress_) {
    const Sequence* seq = scheduler_.find(id);
    if (seq == nullptr || seq->status != SeqStatus::kRunning) continue;
    if (!progress.decoding || seq->in_prefill()) continue;  // a replay reads its prompt again
    EXPECT_LE(num_steps_ - progress.last_step, 1) << "a stream waits too long";
  }
}

// No page is written by two rows, and no state that the step writes is a source of its copies.
void SimulatedEngine::check_writes() const {
  std::set<std::pair<bool, int32_t>> written;
  const bool split = page_plan_.layout == cache::Layout::kSplit;
  for (int32_t row = 0; row < static_cast<int32_t>(plan_->seqs.size()); ++row) {
    const PlannedSeq& seq = plan_->seqs[static_cast<size_t>(row)];
    const std::span<const int32_t> pages = scheduler_.table(0).row(row);
    for (int64_t page = seq.context_len / page_plan_.page_tokens;
         page * page_plan_.page_tokens < seq.context_len + seq.q_len; ++page)
      EXPECT_TRUE(written.insert({false, pages[static_cast<size_t>(page)]}).second)
          << "two rows write one page";
    for (int32_t group = 1; group < static_cast<int32_t>(tables_.size()); ++group)
      EXPECT_TRUE(written.insert({split, scheduler_.table(group).row(row)[0]}).second)
          << "two rows write one state";
  }
  for (const auto& writes : plan_->checkpoints)
    for (const CheckpointWrite& write : writes)
      EXPECT_TRUE(written.insert({split, write.page}).second) << "a checkpoint over a page in use";
  // The owner of a partly filled page may go on behind what is copied; a state is copied whole.
  for (const PageCopy& copy : plan_->copies)
    EXPECT_FALSE(copy.group > 0 && written.contains({split, copy.src}))
        << "a state is copied while it is written";
}

// ---- The device.

SimulatedEngine::PageContent& SimulatedEngine::page_of(Device& device, int32_t group, int32_t page) {
  const bool is_slot = group > 0 && page_plan_.layout == cache::Layout::kSplit;
  return (is_slot ? device.slots : device.pages).at(static_cast<size_t>(page));
}

void SimulatedEngine::move_pages() {
  for (const PageCopy& copy : plan_->swap_out)
    page_of(host_, copy.group, copy.dst) = page_of(device_, copy.group, copy.src);
  for (const PageCopy& copy : plan_->swap_in)
    page_of(device_, copy.group, copy.dst) = page_of(host_, copy.group, copy.src);
  for (const PageCopy& copy : plan_->copies)
    page_of(device_, copy.group, copy.dst) = page_of(device_, copy.group, copy.src);
}

void SimulatedEngine::commit_tables() {
  for (size_t group = 0; group < tables_.size(); ++group) {
    cache::BlockTable& table = scheduler_.table(static_cast<int32_t>(group));
    table.commit([&](int32_t first_row, std::span<const int32_t> rows) {
      std::copy(rows.begin(), rows.end(), tables_[group].begin() + first_row * table.num_columns());
    });
    ASSERT_TRUE(std::equal(tables_[group].begin(), tables_[group].end(), table.data()));
  }
}

uint64_t& SimulatedEngine::kv_at(int32_t row, int64_t position) {
  const size_t num_columns = static_cast<size_t>(scheduler_.table(0).num_columns());
  const std::span<const int32_t> entries(tables_[0].data() + static_cast<size_t>(row) * num_columns,
                                         num_columns);
  const cache::TokenPlace place = cache::locate(entries, position, page_plan_.page_tokens);
  return device_.pages.at(static_cast<size_t>(place.physical)).kv[static_cast<size_t>(place.offset)];
}

SimulatedEngine::State SimulatedEngine::read_state(int32_t row, int64_t context_len) {
  if (context_len == 0) return {};
  if (tables_.size() == 1)
    return {context_len, kv_at(row, context_len - 1)};  // dense: the last token's K says it all
  State state;
  for (size_t group = 1; group < tables_.size(); ++group) {
    const State here =
        page_of(device_, static_cast<int32_t>(group), tables_[group][static_cast<size_t>(row)]).state;
    EXPECT_EQ(here.num_tokens, context_len) << "a state of the wrong moment";
    EXPECT_TRUE(group == 1 || here.value == state.value) << "groups disagree";
    state = here;
  }
  return state;
}

void SimulatedEngine::run_row(int32_t row) {
  const PlannedSeq& seq = plan_->seqs[static_cast<size_t>(row)];
  const bool has_state = tables_.size() > 1;
  const int64_t end = seq.context_len + seq.q_len;
  uint64_t state = read_state(row, seq.context_len).value;
  for (int64_t at = seq.context_len; at < end; ++at) {
    const uint64_t cell = has_state ? cell_of(at, seq.context_len, end) : 0;
    state = advance(state, seq.tokens[static_cast<size_t>(at - seq.context_len)],
                    seq.is_prefill ? cell : kDecode);
    kv_at(row, at) = state;
    for (size_t group = 1; group < tables_.size(); ++group)
      for (const CheckpointWrite& write : plan_->checkpoints[group])
        if (write.row == row && write.num_tokens == at + 1)
          page_of(device_, static_cast<int32_t>(group), write.page).state = {at + 1, state};
  }
  for (size_t group = 1; group < tables_.size(); ++group)
    page_of(device_, static_cast<int32_t>(group), tables_[group][static_cast<size_t>(row)]).state = {end,
                                                                                                     state};
  if (!seq.sample) return;
  uint64_t kv_sum = 0;
  for (int64_t at = 0; at < end; ++at) kv_sum += kv_at(row, at);
  const int32_t token = token_of(state, kv_sum);
  answers_[seq.id].push_back(token);
  sampled_.push_back({.id = seq.id, .token = token, .stop = is_stop(token)});
}

}  // namespace longspan::schedule
