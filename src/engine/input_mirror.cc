#include "engine/input_mirror.h"

#include <cstring>

namespace longspan::engine {
namespace {

constexpr size_t kAlignment = 16;

}  // namespace

InputMirror::InputMirror(Memory& memory, const cache::PagePlan& plan, int64_t max_tokens, int64_t max_seqs,
                         int64_t max_model_len)
    : memory_(memory) {
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

const model::StepInputs& InputMirror::upload(const model::StepInputs& host) {
  if (memory_.is_host()) return host;
  inputs_ = host;
  used_bytes_ = 0;
  for (TensorView* view : {&inputs_.token_ids, &inputs_.positions, &inputs_.seqs.query_start_loc,
                           &inputs_.seqs.seq_lens, &inputs_.logit_rows})
    add(*view);
  for (model::GroupInputs& group : inputs_.groups)
    for (TensorView* view : {&group.block_table, &group.slots, &group.state_pages}) add(*view);
  memory_.upload(device_.data(), staging_.data(), used_bytes_);
  return inputs_;
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

}  // namespace longspan::engine
