#include "engine/input_mirror.h"

#include <cstring>

#include "core/log.h"

namespace longspan::engine {
namespace {

constexpr size_t kAlignment = 16;

// Each array of a step.
template <class Visit>
void for_each_array(model::StepInputs& inputs, const Visit& visit) {
  for (TensorView* view : {&inputs.token_ids, &inputs.positions, &inputs.seqs.query_start_loc,
                           &inputs.seqs.seq_lens, &inputs.logit_rows})
    visit(*view);
  for (model::GroupInputs& group : inputs.groups)
    for (TensorView* view : {&group.block_table, &group.slots, &group.state_pages}) visit(*view);
}

}  // namespace

std::string_view upload_reason(size_t i) {
  constexpr std::string_view kNames[] = {"not_steady", "token_on_host"};
  static_assert(std::size(kNames) == kNumUploadReasons);
  return i < kNumUploadReasons ? kNames[i] : "";
}

InputMirror::InputMirror(Memory& memory, const cache::PagePlan& plan, int64_t max_tokens, int64_t max_seqs,
                         int64_t max_model_len)
    : memory_(memory), page_tokens_(plan.page_tokens) {
  if (memory.is_host()) return;
  const auto num_groups = static_cast<int64_t>(plan.groups.size());
  const int64_t max_pages = plan.pages_for(max_model_len) + 1;
  const int64_t num_arrays = 5 + 3 * num_groups;
  const int64_t num_ints =
      max_tokens * (3 + num_groups) + (max_seqs + 1) * (2 + num_groups * (max_pages + 1));
  const int64_t bytes =
      num_ints * static_cast<int64_t>(sizeof(int32_t)) + num_arrays * static_cast<int64_t>(kAlignment);
  staging_ = Buffer(DType::kU8, {bytes});
  device_ = memory.allocate(DType::kU8, {bytes});
}

const model::StepInputs& InputMirror::update(const model::StepInputs& host, const Gate& gate) {
  if (memory_.is_host()) return host;
  is_behind_ = gate.steady && host.token_ids.as<int32_t>()[0] == gate.chosen_token;
  if (is_behind_) {
    if (counting_ && counters_.num_advanced++ == 0)
      log(LogLevel::kInfo, "decode inputs of one sequence: written by the device from position {} on",
          host.positions.as<int32_t>()[0]);
    follow(host);
  } else {
    const UploadReason why = gate.steady ? UploadReason::kTokenOnHost : UploadReason::kNotSteady;
    counters_.uploads[static_cast<size_t>(why)] += counting_;
    upload(host);
  }
  return inputs_;
}

void InputMirror::upload(const model::StepInputs& host) {
  inputs_ = host;
  used_bytes_ = 0;
  for_each_array(inputs_, [&](TensorView& view) { add(view); });
  memory_.upload(device_.data(), staging_.data(), used_bytes_);
}

void InputMirror::add(TensorView& view) {
  if (view.empty()) return;
  const size_t bytes = view.size_bytes();
  CHECK_MSG(view.is_dense() && used_bytes_ + bytes <= staging_.size_bytes(),
            "mirror of {} bytes: {} used, {} asked for", staging_.size_bytes(), used_bytes_, bytes);
  std::memcpy(static_cast<char*>(staging_.data()) + used_bytes_, view.data, bytes);
  view.data = static_cast<char*>(device_.data()) + used_bytes_;
  used_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// What the host alone knows of a step that is one token further: the path, and pages that were added.
void InputMirror::follow(const model::StepInputs& host) {
  inputs_.attention_runs = host.attention_runs;
  inputs_.layer_tap = host.layer_tap;
  for (size_t i = 0; i < host.groups.size(); ++i) {
    refresh(host.groups[i].block_table, inputs_.groups[i].block_table);
    refresh(host.groups[i].state_pages, inputs_.groups[i].state_pages);
  }
}

void InputMirror::refresh(const TensorView& host, const TensorView& mirrored) {
  if (host.empty()) return;
  void* const staged = static_cast<char*>(staging_.data()) +
                       (static_cast<char*>(mirrored.data) - static_cast<char*>(device_.data()));
  if (std::memcmp(staged, host.data, host.size_bytes()) == 0) return;
  std::memcpy(staged, host.data, host.size_bytes());
  memory_.upload(mirrored.data, staged, host.size_bytes());
  counters_.num_table_uploads += counting_;
}

void InputMirror::advance(ops::Ops& ops, const TensorView& tokens) const {
  const model::GroupInputs& attention = inputs_.groups.front();
  ops.advance_inputs({.tokens = tokens,
                      .block_table = attention.block_table,
                      .page_tokens = page_tokens_,
                      .token_ids = inputs_.token_ids,
                      .positions = TensorView(inputs_.positions.data, DType::kI32, {1, inputs_.num_tokens()}),
                      .query_start_loc = inputs_.seqs.query_start_loc,
                      .seq_lens = inputs_.seqs.seq_lens,
                      .logit_rows = inputs_.logit_rows,
                      .slots = attention.slots});
}

InputCopy copy_to_host(Memory& memory, const model::StepInputs& inputs) {
  InputCopy copy{.inputs = inputs};
  for_each_array(copy.inputs, [&](TensorView& view) {
    if (view.empty()) return;
    const Buffer& buffer = copy.memory.emplace_back(view.dtype, view.shape);
    memory.download(buffer.data(), view.data, view.size_bytes());
    view.data = buffer.data();
  });
  return copy;
}

}  // namespace longspan::engine
