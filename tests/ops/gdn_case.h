// A step's worth of inputs for the Gated DeltaNet operations, made from a few numbers: random tensors with
// padded rows and misaligned data, a pool of state pages full of NaN, sequences at any position.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/cpu/kernels.h"
#include "ops/reference/backend.h"

namespace longspan::ops {

// A tensor whose rows are `padding` elements apart and whose data starts one element off alignment.
class TestTensor {
 public:
  TestTensor() = default;
  TestTensor(DType dtype, Shape shape, Index padding = 0, bool misaligned = false) {
    Index row = 1;
    for (int axis = 1; axis < shape.rank; ++axis) row *= shape[axis];
    const Index stride = row + padding;
    memory_.resize(static_cast<size_t>(shape[0] * stride + 1) * dtype_size(dtype));
    view_ = TensorView(memory_.data() + (misaligned ? dtype_size(dtype) : 0), dtype, shape);
    if (shape.rank > 1) view_.strides[0] = stride;
  }
  TestTensor(const TestTensor&) = delete;
  TestTensor& operator=(const TestTensor&) = delete;
  TestTensor(TestTensor&&) = default;
  TestTensor& operator=(TestTensor&&) = default;

  const TensorView& view() const { return view_; }
  const std::vector<char>& memory() const { return memory_; }

  template <class Fn>
  void fill(const Fn& next) {
    for_each([&](Index offset) {
      if (view_.dtype == DType::kF32) view_.as<float>()[offset] = next();
      if (view_.dtype == DType::kBF16) view_.as<bf16>()[offset] = bf16(next());
      if (view_.dtype == DType::kF16) view_.as<f16>()[offset] = f16(next());
    });
  }

  // Row-major, padding left out.
  std::vector<float> values() const {
    std::vector<float> all;
    for_each([&](Index offset) {
      if (view_.dtype == DType::kF32) all.push_back(view_.as<float>()[offset]);
      if (view_.dtype == DType::kBF16) all.push_back(static_cast<float>(view_.as<bf16>()[offset]));
      if (view_.dtype == DType::kF16) all.push_back(static_cast<float>(view_.as<f16>()[offset]));
    });
    return all;
  }

 private:
  template <class Fn>
  void for_each(const Fn& fn) const {
    const Index row = view_.shape.rank == 1 ? 1 : view_.num_elements() / view_.dim(0);
    for (Index i = 0; i < view_.dim(0); ++i)
      for (Index j = 0; j < row; ++j) fn(i * view_.stride(0) + j);
  }

  std::vector<char> memory_;
  TensorView view_;
};

inline TestTensor ints(const std::vector<int32_t>& values) {
  TestTensor tensor(DType::kI32, {static_cast<Index>(values.size())});
  std::memcpy(tensor.view().data, values.data(), values.size() * sizeof(int32_t));
  return tensor;
}

// |a - b| / |b|
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

struct SeqSpec {
  Index context_len = 0;
  Index num_rows = 0;
};

// What a step consists of.
struct GdnShape {
  DType dtype = DType::kF32;
  Index num_k_heads = 2;
  Index heads_per_key = 1;
  Index k_dim = 32;
  Index v_dim = 32;
  Index conv_kernel = 4;
  std::vector<SeqSpec> seqs = {{0, 64}};
  Index num_decode_seqs = 0;
  Index padding = 0;
  bool misaligned = false;
  float a_mean = -4.0f;  // softplus(a + dt_bias): the decay's size; alpha about 0.98 by default
  float a_spread = 1.0f;
  float a_log = 0.0f;
  uint32_t seed = 1;

  Index num_v_heads() const { return num_k_heads * heads_per_key; }
  Index conv_channels() const { return 2 * num_k_heads * k_dim + num_v_heads() * v_dim; }
  Index num_tokens() const {
    Index sum = 0;
    for (const SeqSpec& seq : seqs) sum += seq.num_rows;
    return sum;
  }
};

// State pages: a header of S and conv history each, NaN until a sequence writes them.
class StatePool {
 public:
  StatePool(const GdnShape& shape, Index num_pages) {
    cache_.conv_dtype = shape.dtype;
    cache_.num_pages = num_pages;
    cache_.num_v_heads = shape.num_v_heads();
    cache_.k_dim = shape.k_dim;
    cache_.v_dim = shape.v_dim;
    cache_.conv_kernel = shape.conv_kernel;
    cache_.conv_channels = shape.conv_channels();
    cache_.conv_offset_bytes = cache_.num_v_heads * cache_.k_dim * cache_.v_dim * 4;
    const Index conv_bytes =
        (shape.conv_kernel - 1) * shape.conv_channels() * static_cast<Index>(dtype_size(shape.dtype));
    cache_.page_stride_bytes = (cache_.conv_offset_bytes + conv_bytes + 64 + 63) / 64 * 64;
    memory_.assign(static_cast<size_t>(num_pages * cache_.page_stride_bytes), '\xff');  // NaN in every dtype
    cache_.data = memory_.data();
  }
  StatePool(const StatePool& other) : cache_(other.cache_), memory_(other.memory_) {
    cache_.data = memory_.data();
  }

  const StateCache& cache() const { return cache_; }
  const std::vector<char>& memory() const { return memory_; }
  TensorView s(Index page) const {
    return TensorView(page_data(page), DType::kF32, {cache_.num_v_heads, cache_.k_dim, cache_.v_dim});
  }
  TensorView history(Index page) const {
    return TensorView(page_data(page) + cache_.conv_offset_bytes, cache_.conv_dtype,
                      {cache_.conv_kernel - 1, cache_.conv_channels});
  }
  std::vector<float> s_values(Index page) const {
    const float* data = s(page).as<float>();
    return {data, data + s(page).num_elements()};
  }
  std::vector<char> page_bytes(Index page) const {
    return {page_data(page), page_data(page) + cache_.page_stride_bytes};
  }

 private:
  char* page_data(Index page) const {
    return const_cast<char*>(memory_.data()) + page * cache_.page_stride_bytes;
  }
  StateCache cache_;
  std::vector<char> memory_;
};

// All tensors of one GatedDelta and one CausalConv call.
class GdnCase {
 public:
  explicit GdnCase(const GdnShape& shape_in)
      : shape(shape_in), random_(shape_in.seed), pool(shape_in, 2 * num_seqs() + 2) {
    const Index n = shape.num_tokens(), hk = shape.num_k_heads, hv = shape.num_v_heads();
    const auto make = [&](Shape dims) {
      return TestTensor(shape.dtype, dims, shape.padding, shape.misaligned);
    };
    q = make({n, hk, shape.k_dim});
    k = make({n, hk, shape.k_dim});
    v = make({n, hv, shape.v_dim});
    z = make({n, hv, shape.v_dim});
    a = make({n, hv});
    b = make({n, hv});
    out = make({n, hv, shape.v_dim});
    x = make({n, shape.conv_channels()});
    conv_out = make({n, shape.conv_channels()});
    for (TestTensor* tensor : {&q, &k, &v, &z, &b, &x}) tensor->fill([&] { return normal(0.0f, 1.0f); });
    a.fill([&] { return normal(shape.a_mean, shape.a_spread); });
    a_log = TestTensor(DType::kF32, {hv});
    dt_bias = TestTensor(DType::kF32, {hv});
    norm = TestTensor(DType::kF32, {shape.v_dim});
    conv_weight = TestTensor(DType::kF32, {shape.conv_channels(), shape.conv_kernel});
    a_log.fill([&] { return normal(shape.a_log, 0.3f); });
    dt_bias.fill([&] { return normal(0.0f, 0.3f); });
    norm.fill([&] { return normal(1.0f, 0.2f); });
    conv_weight.fill([&] { return normal(0.0f, 0.5f); });
    set_sequences();
  }

  Index num_seqs() const { return static_cast<Index>(shape.seqs.size()); }
  // Pages are handed out back to front, so that page and sequence differ.
  Index page_of(Index seq_idx) const { return 2 * num_seqs() - seq_idx; }

  GatedDelta gated_delta(const StatePool& states, const TensorView& result) const {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .z = z.view(),
            .a = a.view(),
            .b = b.view(),
            .a_log = a_log.view(),
            .dt_bias = dt_bias.view(),
            .norm = norm.view(),
            .eps = 1e-6f,
            .state = states.cache(),
            .state_pages = state_pages.view(),
            .seqs = sequences(),
            .checkpoints = checkpoints,
            .out = result};
  }
  CausalConv causal_conv(const StatePool& states, const TensorView& result) const {
    return {.x = x.view(),
            .weight = conv_weight.view(),
            .state = states.cache(),
            .state_pages = state_pages.view(),
            .seqs = sequences(),
            .checkpoints = checkpoints,
            .out = result};
  }
  Sequences sequences() const {
    return {query_start_loc.view(), seq_lens.view(), num_seqs(), shape.num_decode_seqs};
  }

  float normal(float mean, float spread) { return std::normal_distribution<float>(mean, spread)(random_); }

  const GdnShape shape;

 private:
  std::mt19937 random_;

  // A sequence that goes on has a state; a fresh one finds NaN.
  void set_sequences() {
    std::vector<int32_t> starts{0}, lens, pages;
    for (Index seq_idx = 0; seq_idx < num_seqs(); ++seq_idx) {
      const SeqSpec& seq = shape.seqs[static_cast<size_t>(seq_idx)];
      starts.push_back(static_cast<int32_t>(starts.back() + seq.num_rows));
      lens.push_back(static_cast<int32_t>(seq.context_len + seq.num_rows));
      pages.push_back(static_cast<int32_t>(page_of(seq_idx)));
      if (seq.context_len == 0) continue;
      float* s = pool.s(pages.back()).as<float>();
      for (Index i = 0; i < pool.s(pages.back()).num_elements(); ++i) s[i] = normal(0.0f, 0.2f);
      const TensorView history = pool.history(pages.back());
      for (Index i = 0; i < history.num_elements(); ++i) {
        const float value = normal(0.0f, 1.0f);
        if (shape.dtype == DType::kF32) history.as<float>()[i] = value;
        if (shape.dtype == DType::kBF16) history.as<bf16>()[i] = bf16(value);
        if (shape.dtype == DType::kF16) history.as<f16>()[i] = f16(value);
      }
    }
    query_start_loc = ints(starts);
    seq_lens = ints(lens);
    state_pages = ints(pages);
  }

 public:
  StatePool pool;
  TestTensor q, k, v, z, a, b, a_log, dt_bias, norm, out;
  TestTensor x, conv_weight, conv_out;
  TestTensor query_start_loc, seq_lens, state_pages;
  std::vector<StateCheckpoint> checkpoints;
};

// What a call leaves behind.
struct GdnResult {
  std::vector<float> out;
  StatePool states;
};

inline TestTensor like(const TestTensor& tensor, const GdnShape& shape) {
  return TestTensor(tensor.view().dtype, tensor.view().shape, shape.padding, shape.misaligned);
}

inline GdnResult run_cpu_delta(const GdnCase& c, int num_threads = 2) {
  ThreadPool pool(num_threads);
  cpu::Scratch scratch(num_threads);
  GdnResult result{{}, c.pool};
  const TestTensor out = like(c.out, c.shape);
  cpu::gated_delta({pool, scratch}, c.gated_delta(result.states, out.view()));
  result.out = out.values();
  return result;
}

inline GdnResult run_cpu_conv(const GdnCase& c, int num_threads = 2) {
  ThreadPool pool(num_threads);
  cpu::Scratch scratch(num_threads);
  GdnResult result{{}, c.pool};
  const TestTensor out = like(c.conv_out, c.shape);
  cpu::causal_conv({pool, scratch}, c.causal_conv(result.states, out.view()));
  result.out = out.values();
  return result;
}

inline GdnResult run_reference_delta(const GdnCase& c) {
  GdnResult result{{}, c.pool};
  const TestTensor out = like(c.out, c.shape);
  reference::make_backend()->gated_delta(c.gated_delta(result.states, out.view()));
  result.out = out.values();
  return result;
}

inline GdnResult run_reference_conv(const GdnCase& c) {
  GdnResult result{{}, c.pool};
  const TestTensor out = like(c.conv_out, c.shape);
  reference::make_backend()->causal_conv(c.causal_conv(result.states, out.view()));
  result.out = out.values();
  return result;
}

}  // namespace longspan::ops
