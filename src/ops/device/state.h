// Pages of recurrent state, as kernels see them, and the list of checkpoints of a step.
#pragma once

#include "ops/device/kernels.h"
#include "ops/device/memory.h"

namespace longspan::ops::device {

template <class T>
struct StatePages {
  Global<float> data;   // the pages, as floats
  int64_t page_stride;  // floats
  int64_t conv_offset;  // floats
  int num_v_heads;
  int k_dim;
  int v_dim;
  int kernel;
  int channels;

  // f32 [k_dim, v_dim] of one head.
  DEVICE_FN Global<float> s(int page, int head) const {
    return data + (page * page_stride + static_cast<int64_t>(head) * k_dim * v_dim);
  }
  // T [kernel - 1, channels], oldest first.
  DEVICE_FN Global<T> history(int page) const {
    return {reinterpret_cast<T*>(data.data + page * page_stride + conv_offset)};
  }
};

template <class T>
StatePages<T> state_pages(const StateCache& state) {
  constexpr Index kSize = sizeof(float);
  CHECK_MSG(state.page_stride_bytes % kSize == 0 && state.conv_offset_bytes % kSize == 0,
            "state page of {} bytes, conv history at {}: need multiples of {}", state.page_stride_bytes,
            state.conv_offset_bytes, kSize);
  return {.data = {static_cast<float*>(state.data)},
          .page_stride = state.page_stride_bytes / kSize,
          .conv_offset = state.conv_offset_bytes / kSize,
          .num_v_heads = static_cast<int>(state.num_v_heads),
          .k_dim = static_cast<int>(state.k_dim),
          .v_dim = static_cast<int>(state.v_dim),
          .kernel = static_cast<int>(state.conv_kernel),
          .channels = static_cast<int>(state.conv_channels)};
}

// The checkpoints as device memory, valid until the next call.
inline Global<StateCheckpoint> upload_checkpoints(const Context& context,
                                                  std::span<const StateCheckpoint> checkpoints) {
  if (checkpoints.empty()) return {};
  void* to = context.tables.reserve(checkpoints.size_bytes());
  context.device.upload(to, checkpoints.data(), checkpoints.size_bytes());
  return {static_cast<StateCheckpoint*>(to)};
}

// The checkpoint's page that sequence `seq_idx` at `num_tokens` tokens also writes, or -1.
DEVICE_FN int checkpoint_page(Global<StateCheckpoint> checkpoints, int count, int seq_idx, int num_tokens) {
  for (int i = 0; i < count; ++i) {
    const Global<int32_t> item{reinterpret_cast<int32_t*>(checkpoints.data + i)};
    if (item.get(0) == seq_idx && item.get(1) == num_tokens) return item.get(2);
  }
  return -1;
}

}  // namespace longspan::ops::device
