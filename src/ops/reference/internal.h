// Element access for the reference operations: reads any model dtype as float, writes with one rounding.
#pragma once

#include "ops/ops.h"

namespace longspan::ops::reference {

// A view read and written element by element through float.
class Elements {
 public:
  explicit Elements(const TensorView& view) : view_(view) {}

  float at(Index i, Index j = 0, Index k = 0) const {
    const Index offset = offset_of(i, j, k);
    switch (view_.dtype) {
      case DType::kF32:
        return static_cast<const float*>(view_.data)[offset];
      case DType::kBF16:
        return static_cast<float>(static_cast<const bf16*>(view_.data)[offset]);
      case DType::kF8E4M3:
        return static_cast<float>(view_.as<f8e4m3>()[offset]);
      default:
        return static_cast<float>(view_.as<f16>()[offset]);
    }
  }

  void set(float value, Index i, Index j = 0, Index k = 0) const {
    const Index offset = offset_of(i, j, k);
    switch (view_.dtype) {
      case DType::kF32:
        static_cast<float*>(view_.data)[offset] = value;
        return;
      case DType::kBF16:
        static_cast<bf16*>(view_.data)[offset] = bf16(value);
        return;
      case DType::kF8E4M3:
        view_.as<f8e4m3>()[offset] = f8e4m3(value);
        return;
      default:
        view_.as<f16>()[offset] = f16(value);
    }
  }

 private:
  Index offset_of(Index i, Index j, Index k) const {
    const Index index[] = {i, j, k};
    Index offset = 0;
    for (int axis = 0; axis < view_.shape.rank; ++axis) offset += index[axis] * view_.stride(axis);
    return offset;
  }

  TensorView view_;
};

// value rounded to dtype and back: the "rnd" of the formulas.
inline float rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return static_cast<float>(bf16(value));
  return dtype == DType::kF16 ? static_cast<float>(f16(value)) : value;
}

// K (plane 0) or V (plane 1) rows of a page pool as a dense [page_tokens, num_kv_heads, head_dim] view of one
// page.
inline TensorView kv_page(const KvCache& kv, Index page, Index plane) {
  const Index plane_bytes =
      kv.page_tokens * kv.num_kv_heads * kv.head_dim * static_cast<Index>(dtype_size(kv.dtype));
  return TensorView(static_cast<char*>(kv.data) + page * kv.page_stride_bytes + plane * plane_bytes, kv.dtype,
                    {kv.page_tokens, kv.num_kv_heads, kv.head_dim});
}

// f32 S [num_v_heads, k_dim, v_dim] of one state page.
inline TensorView ssm_state(const StateCache& state, Index page) {
  return TensorView(static_cast<char*>(state.data) + page * state.page_stride_bytes, DType::kF32,
                    {state.num_v_heads, state.k_dim, state.v_dim});
}

// T [conv_kernel - 1, conv_channels] of one state page, oldest row first.
inline TensorView conv_state(const StateCache& state, Index page) {
  return TensorView(static_cast<char*>(state.data) + page * state.page_stride_bytes + state.conv_offset_bytes,
                    state.conv_dtype, {state.conv_kernel - 1, state.conv_channels});
}

// What a sequence brings to this step.
struct SeqSpan {
  Index first_row = 0;    // token row of its first token
  Index num_rows = 0;     // tokens in this step
  Index context_len = 0;  // tokens in the cache before this step
};

inline SeqSpan seq_span(const Sequences& seqs, Index seq_idx) {
  const int32_t* start = seqs.query_start_loc.as<int32_t>();
  const Index num_rows = start[seq_idx + 1] - start[seq_idx];
  return {start[seq_idx], num_rows, seqs.seq_lens.as<int32_t>()[seq_idx] - num_rows};
}

void attention(const Attention& args);
void causal_conv(const CausalConv& args);
void gated_delta(const GatedDelta& args);

}  // namespace longspan::ops::reference
