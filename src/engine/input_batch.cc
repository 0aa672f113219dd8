#include "engine/input_batch.h"

#include <algorithm>

namespace longspan::engine {
namespace {

int32_t* ints(const Buffer& buffer) { return static_cast<int32_t*>(buffer.data()); }

TensorView first(const Buffer& buffer, int32_t count) { return buffer.view().rows(0, count); }

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
  inputs_.attention_runs.reserve(2);
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

}  // namespace longspan::engine
