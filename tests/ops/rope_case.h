// A QkRopeWrite for tests: q, k, v and gates as slices of one row, scattered slots, and all memory to
// compare.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/ops.h"

namespace longspan::ops::test {

struct RopeShape {
  DType dtype = DType::kBF16;
  Index num_tokens = 37;
  Index num_q_heads = 4;
  Index num_kv_heads = 2;
  Index head_dim = 64;
  Index rotary_dim = 16;
  bool normed = true;
  NormKind norm_kind = NormKind::kZeroCentered;
  Index misalignment = 0;  // elements
  bool codes = false;      // an FP8 cache
};

inline constexpr Index kRopePageTokens = 16;
inline constexpr Index kRopePages = 5;

// Buffers of one QkRopeWrite; equal for equal shapes. q, k and v are slices of one row, as a fused projection
// gives them; q heads have a gate behind each.
class RopeProblem {
 public:
  explicit RopeProblem(const RopeShape& shape)
      : s_(shape),
        row_stride_((2 * s_.num_q_heads + 2 * s_.num_kv_heads) * s_.head_dim + 5),
        rows_(bytes(s_.num_tokens * row_stride_ + s_.misalignment)),
        cache_(cache_bytes(kRopePages * page_elements() + s_.misalignment)),
        scales_(DType::kF32, {2, s_.num_kv_heads}),
        saturated_(DType::kI64, {1}),
        q_norm_(DType::kF32, {s_.head_dim}),
        k_norm_(DType::kF32, {s_.head_dim}),
        cos_sin_(DType::kF32, {s_.num_tokens, s_.rotary_dim}),
        slots_(DType::kI32, {s_.num_tokens}) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (Index i = 0; i < s_.num_tokens * row_stride_ + s_.misalignment; ++i) set(rows_, i, normal(random));
    for (Index i = 0; i < 2 * s_.num_kv_heads; ++i) scales_.view().as<float>()[i] = scale(i);
    for (Index d = 0; d < s_.head_dim; ++d) {
      q_norm_.view().as<float>()[d] = normal(random);
      k_norm_.view().as<float>()[d] = normal(random);
    }
    for (Index i = 0; i < s_.num_tokens * s_.rotary_dim; ++i)
      cos_sin_.view().as<float>()[i] = std::sin(static_cast<float>(i));
    // Scattered slots of pages 1 and up; every fifth token writes nothing.
    for (Index t = 0; t < s_.num_tokens; ++t)
      slots_.view().as<int32_t>()[t] = t % 5 == 4 ? -1 : static_cast<int32_t>(kRopePageTokens + t * 27 % 64);
  }

  QkRopeWrite args() const {
    QkRopeWrite call;
    const Index d = s_.head_dim;
    call.q = heads(0, s_.num_q_heads, 2 * d);
    call.k = heads(2 * s_.num_q_heads * d, s_.num_kv_heads, d);
    call.v = heads((2 * s_.num_q_heads + s_.num_kv_heads) * d, s_.num_kv_heads, d);
    if (s_.normed) {
      call.q_norm = q_norm_.view();
      call.k_norm = k_norm_.view();
    }
    call.norm_kind = s_.norm_kind;
    call.cos_sin = cos_sin_.view();
    call.slots = slots_.view();
    call.kv = {.data = static_cast<char*>(cache_.data()) + cache_bytes(s_.misalignment),
               .dtype = cache_dtype(),
               .num_pages = kRopePages,
               .page_stride_bytes = static_cast<Index>(cache_bytes(page_elements())),
               .page_tokens = kRopePageTokens,
               .num_kv_heads = s_.num_kv_heads,
               .head_dim = d};
    if (s_.codes) {
      call.kv.scales = scales_.view();
      call.kv.saturated = saturated_.view();
    }
    call.q_out = call.q;
    return call;
  }

  // Small ones, under which many elements saturate, and large ones, which leave subnormal codes.
  static float scale(Index i) { return i % 2 == 0 ? 0.0043f : 47.0f; }
  int64_t num_saturated() const { return *saturated_.view().as<int64_t>(); }
  const f8e4m3* codes() const { return static_cast<const f8e4m3*>(cache_.data()); }
  // The head's place of cache element i, and its plane: i32 pairs as scale() counts them; -1 for padding.
  Index scale_index(Index i) const {
    const Index row = s_.num_kv_heads * s_.head_dim;
    const Index in_page = (i - s_.misalignment) % page_elements();
    if (i < s_.misalignment || in_page >= 2 * kRopePageTokens * row) return -1;
    return in_page / (kRopePageTokens * row) * s_.num_kv_heads + in_page % row / s_.head_dim;
  }
  std::vector<float> cache() const {
    std::vector<float> values;
    for (size_t i = 0; i < cache_.size_bytes() / dtype_size(s_.dtype); ++i)
      values.push_back(get(cache_, static_cast<Index>(i)));
    return values;
  }

  // Every element of the rows, then of the cache: what must not be written is compared too.
  std::vector<float> memory() const {
    std::vector<float> values;
    for (const Buffer* buffer : {&rows_, &cache_})
      for (size_t i = 0; i < buffer->size_bytes() / dtype_size(s_.dtype); ++i)
        values.push_back(get(*buffer, static_cast<Index>(i)));
    return values;
  }

 private:
  size_t bytes(Index elements) const { return static_cast<size_t>(elements) * dtype_size(s_.dtype); }
  DType cache_dtype() const { return s_.codes ? DType::kF8E4M3 : s_.dtype; }
  size_t cache_bytes(Index elements) const {
    return static_cast<size_t>(elements) * dtype_size(cache_dtype());
  }
  Index page_elements() const { return 2 * kRopePageTokens * s_.num_kv_heads * s_.head_dim + 8; }
  void set(const Buffer& buffer, Index i, float value) const {
    if (s_.dtype == DType::kF32)
      static_cast<float*>(buffer.data())[i] = value;
    else
      static_cast<bf16*>(buffer.data())[i] = bf16(value);
  }
  float get(const Buffer& buffer, Index i) const {
    return s_.dtype == DType::kF32 ? static_cast<float*>(buffer.data())[i]
                                   : static_cast<float>(static_cast<bf16*>(buffer.data())[i]);
  }
  TensorView heads(Index offset, Index num_heads, Index head_stride) const {
    TensorView view(static_cast<char*>(rows_.data()) + bytes(s_.misalignment + offset), s_.dtype,
                    {s_.num_tokens, num_heads, s_.head_dim});
    view.strides = {row_stride_, head_stride, 1, 0};
    return view;
  }

  RopeShape s_;
  Index row_stride_;
  Buffer rows_, cache_, scales_, saturated_, q_norm_, k_norm_, cos_sin_, slots_;
};

}  // namespace longspan::ops::test
