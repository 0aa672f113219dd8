#include "engine/input_batch.h"

#include <algorithm>

#include "core/log.h"

namespace longspan::engine {
namespace {

int32_t* ints(const Buffer& buffer) { return static_cast<int32_t*>(buffer.data()); }

TensorView first(const Buffer& buffer, int32_t count) { return buffer.view().rows(0, count); }

// The state gate, in order.
struct SteadyCase {
  const schedule::StepPlan& step;
  const schedule::PlannedSeq& seq;
  schedule::SeqId last_id;
  int32_t last_seq_len;
  bool last_is_decode;
};
struct SteadyCondition {
  std::string_view name;
  bool (*holds)(const SteadyCase&);
};
constexpr SteadyCondition kSteady[] = {
    {"one_sequence", [](const SteadyCase& c) { return c.step.seqs.size() == 1; }},
    {"one_token", [](const SteadyCase& c) { return c.seq.q_len == 1; }},
    {"decodes", [](const SteadyCase& c) { return !c.seq.is_prefill; }},
    // Not while a known answer is replayed: such a row has no logits.
    {"samples", [](const SteadyCase& c) { return c.seq.sample; }},
    {"same_sequence", [](const SteadyCase& c) { return c.last_is_decode && c.seq.id == c.last_id; }},
    {"next_position", [](const SteadyCase& c) { return c.seq.context_len == c.last_seq_len; }},
};
static_assert(std::size(kSteady) == kNumSteadyConditions);

bool same_shape(const TensorView& a, const TensorView& b) {
  if ((a.data == nullptr) != (b.data == nullptr)) return false;
  return a.data == nullptr || (a.dtype == b.dtype && a.shape == b.shape);
}

// "" or "name: [i] is x and y".
std::string difference(const std::string& name, const TensorView& a, const TensorView& b) {
  if (!same_shape(a, b)) return name + ": other shapes";
  if (a.data == nullptr) return "";
  for (Index i = 0; i < a.num_elements(); ++i)
    if (a.as<int32_t>()[i] != b.as<int32_t>()[i])
      return fmt::format("{}: [{}] is {} and {}", name, i, a.as<int32_t>()[i], b.as<int32_t>()[i]);
  return "";
}

}  // namespace

InputBatch::InputBatch(const cache::PagePlan& plan, int64_t max_tokens, int64_t max_seqs,
                       Dispatcher& dispatcher)
    : plan_(plan),
      dispatcher_(dispatcher),
      token_ids_(DType::kI32, {max_tokens}),
      positions_(DType::kI32, {max_tokens}),
      query_start_loc_(DType::kI32, {max_seqs + 1}),
      seq_lens_(DType::kI32, {max_seqs}),
      logit_rows_(DType::kI32, {max_tokens}),
      checkpoints_(plan.groups.size()) {
  for (const cache::LayerGroup& group : plan.groups)
    slots_.push_back(group.kind == cache::LayerKind::kAttention ? Buffer(DType::kI32, {max_tokens})
                                                                : Buffer());
  for (auto& list : checkpoints_) list.reserve(static_cast<size_t>(max_tokens / ops::kGdnChunk + max_seqs));
  inputs_.groups.resize(plan.groups.size());
  counters_.reserved = dispatcher.config().steady_decode_inputs;
  inputs_.attention_runs.reserve(2);
}

bool InputBatch::try_steady(const schedule::StepPlan& step, const schedule::Scheduler& scheduler) {
  const schedule::PlannedSeq& seq = step.seqs.front();
  const SteadyCase c{step, seq, last_.id, last_.seq_len, last_.is_decode};
  last_ = {.id = seq.id,
           .seq_len = seq.context_len + seq.q_len,
           .is_decode = step.seqs.size() == 1 && !seq.is_prefill && seq.sample};
  if (!counters_.reserved) return false;
  for (size_t i = 0; i < kNumSteadyConditions; ++i) {
    if (kSteady[i].holds(c)) continue;
    counters_.misses[i] += counting_;
    return false;
  }
  if (counting_ && counters_.num_dispatched++ == 0)
    log(LogLevel::kInfo, "decode inputs of one sequence: dispatched at position {}", seq.context_len);
  advance(seq, scheduler);
  return true;
}

// The arrays keep their shapes; ids, position, length and each group's slot move on by one token.
void InputBatch::advance(const schedule::PlannedSeq& seq, const schedule::Scheduler& scheduler) {
  const int32_t position = seq.context_len;
  ints(token_ids_)[0] = seq.tokens.front();
  ints(positions_)[0] = position;
  ints(seq_lens_)[0] = position + 1;
  for (size_t group = 0; group < slots_.size(); ++group)
    if (slots_[group].data() != nullptr)
      ints(slots_[group])[0] = static_cast<int32_t>(
          cache::locate(scheduler.table(static_cast<int32_t>(group)).row(0), position, plan_.page_tokens)
              .slot);
  inputs_.attention_runs.front().path =
      dispatcher_.decode_path({.num_seqs = 1, .q_len = 1, .max_q_len = 1, .kv_len = position + 1});
}

void InputBatch::begin(const schedule::StepPlan& step) {
  num_tokens_ = num_seqs_ = num_logits_ = 0;
  ints(query_start_loc_)[0] = 0;
  for (size_t group = 0; group < checkpoints_.size(); ++group) {
    checkpoints_[group].clear();
    if (group >= step.checkpoints.size()) continue;
    for (const schedule::CheckpointWrite& write : step.checkpoints[group])
      checkpoints_[group].push_back(
          {.seq_idx = write.row, .num_tokens = write.num_tokens, .page = write.page});
  }
}

void InputBatch::add(const schedule::PlannedSeq& seq, bool all_logits) {
  std::copy(seq.tokens.begin(), seq.tokens.end(), ints(token_ids_) + num_tokens_);
  for (int32_t i = 0; i < seq.q_len; ++i) {
    ints(positions_)[num_tokens_ + i] = seq.context_len + i;
    if (all_logits || (seq.sample && i + 1 == seq.q_len)) ints(logit_rows_)[num_logits_++] = num_tokens_ + i;
  }
  num_tokens_ += seq.q_len;
  ints(seq_lens_)[num_seqs_++] = seq.context_len + seq.q_len;
  ints(query_start_loc_)[num_seqs_] = num_tokens_;
}

void InputBatch::finish(const schedule::StepPlan& step, schedule::Scheduler& scheduler) {
  for (size_t group = 0; group < plan_.groups.size(); ++group) {
    cache::BlockTable& table = scheduler.table(static_cast<int32_t>(group));
    const TensorView entries(const_cast<int32_t*>(table.data()), DType::kI32,
                             {table.num_rows(), table.num_columns()});
    model::GroupInputs& inputs = inputs_.groups[group];
    if (plan_.groups[group].kind == cache::LayerKind::kState) {
      CHECK(table.num_columns() == 1);
      inputs.state_pages = TensorView(entries.data, DType::kI32, {num_seqs_});
      inputs.checkpoints = checkpoints_[group];
      continue;
    }
    inputs.block_table = entries.rows(0, num_seqs_);
    for (int32_t seq = 0; seq < num_seqs_; ++seq)
      for (int32_t i = ints(query_start_loc_)[seq]; i < ints(query_start_loc_)[seq + 1]; ++i)
        ints(slots_[group])[i] =
            static_cast<int32_t>(cache::locate(table.row(seq), ints(positions_)[i], plan_.page_tokens).slot);
    inputs.slots = first(slots_[group], num_tokens_);
  }
  inputs_.token_ids = first(token_ids_, num_tokens_);
  inputs_.positions = first(positions_, num_tokens_);
  inputs_.seqs = {.query_start_loc = first(query_start_loc_, num_seqs_ + 1),
                  .seq_lens = first(seq_lens_, num_seqs_),
                  .num_seqs = num_seqs_,
                  .num_decode_seqs = step.num_decode_seqs};
  inputs_.logit_rows = first(logit_rows_, num_logits_);
  const int32_t* rows = ints(logit_rows_);
  inputs_.num_decode_logits = std::lower_bound(rows, rows + num_logits_, step.num_decode_seqs) - rows;
  choose_paths(step);
}

// One run for all decode rows, one for all prompt chunks.
void InputBatch::choose_paths(const schedule::StepPlan& step) {
  inputs_.attention_runs.clear();
  const auto shape_of = [&](int32_t first_seq, int32_t end_seq) {
    AttentionShape shape{.num_seqs = end_seq - first_seq,
                         .q_len = step.seqs[static_cast<size_t>(first_seq)].q_len};
    for (int32_t seq = first_seq; seq < end_seq; ++seq) {
      shape.max_q_len = std::max<int64_t>(shape.max_q_len, step.seqs[static_cast<size_t>(seq)].q_len);
      shape.kv_len = std::max<int64_t>(shape.kv_len, ints(seq_lens_)[seq]);
    }
    return shape;
  };
  const int32_t num_decode = step.num_decode_seqs;
  if (num_decode > 0)
    inputs_.attention_runs.push_back({dispatcher_.decode_path(shape_of(0, num_decode)), 0, num_decode});
  if (num_seqs_ > num_decode)
    inputs_.attention_runs.push_back(
        {dispatcher_.prefill_path(shape_of(num_decode, num_seqs_)), num_decode, num_seqs_ - num_decode});
}

std::string_view steady_condition(size_t i) { return i < kNumSteadyConditions ? kSteady[i].name : ""; }

std::string first_difference(const model::StepInputs& a, const model::StepInputs& b) {
  std::string found;
  const auto compare = [&](const std::string& name, const TensorView& x, const TensorView& y) {
    if (found.empty()) found = difference(name, x, y);
  };
  const auto expect = [&](bool same, const char* name) {
    if (found.empty() && !same) found = fmt::format("{} differ", name);
  };
  compare("token_ids", a.token_ids, b.token_ids);
  compare("positions", a.positions, b.positions);
  compare("query_start_loc", a.seqs.query_start_loc, b.seqs.query_start_loc);
  compare("seq_lens", a.seqs.seq_lens, b.seqs.seq_lens);
  compare("logit_rows", a.logit_rows, b.logit_rows);
  expect(a.num_decode_logits == b.num_decode_logits, "numbers of sampled decode rows");
  expect(a.seqs.num_seqs == b.seqs.num_seqs && a.seqs.num_decode_seqs == b.seqs.num_decode_seqs,
         "numbers of sequences");
  expect(a.groups.size() == b.groups.size() && a.attention_runs.size() == b.attention_runs.size(),
         "numbers of groups or runs");
  for (size_t i = 0; found.empty() && i < a.groups.size(); ++i) {
    compare(fmt::format("slots of group {}", i), a.groups[i].slots, b.groups[i].slots);
    compare(fmt::format("block table of group {}", i), a.groups[i].block_table, b.groups[i].block_table);
    compare(fmt::format("state pages of group {}", i), a.groups[i].state_pages, b.groups[i].state_pages);
    expect(std::ranges::equal(a.groups[i].checkpoints, b.groups[i].checkpoints,
                              [](const ops::StateCheckpoint& x, const ops::StateCheckpoint& y) {
                                return x.seq_idx == y.seq_idx && x.num_tokens == y.num_tokens &&
                                       x.page == y.page;
                              }),
           "checkpoints");
  }
  for (size_t i = 0; found.empty() && i < a.attention_runs.size(); ++i)
    expect(a.attention_runs[i].path == b.attention_runs[i].path &&
               a.attention_runs[i].first_seq == b.attention_runs[i].first_seq &&
               a.attention_runs[i].num_seqs == b.attention_runs[i].num_seqs,
           "attention runs");
  return found;
}

}  // namespace longspan::engine
