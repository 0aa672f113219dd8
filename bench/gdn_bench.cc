// Gated delta rule, convolution and row operations on the CPU at the shapes of the published models: 16 key
// heads, 16 (0.8B) or 48 (27B) value heads of 128. Flops are those of MODEL 2.8 (11.5 Mflop a chunk and
// head); bytes those the op must read and write.
#include <benchmark/benchmark.h>

#include <random>
#include <thread>
#include <vector>

#include "ops/cpu/kernels.h"

namespace longspan::ops::cpu {
namespace {

constexpr Index kNumKeyHeads = 16;
constexpr Index kDim = 128;

// Owned random data and a pool of threads over every processor.
class Setup {
 public:
  explicit Setup(DType dtype)
      : dtype_(dtype),
        num_threads_(static_cast<int>(std::thread::hardware_concurrency())),
        pool_(num_threads_),
        scratch_(num_threads_) {}

  Context context() { return {pool_, scratch_}; }
  TensorView random(DType dtype, Shape shape, float mean = 0, float spread = 1) {
    buffers_.emplace_back(dtype, shape);
    const TensorView view = buffers_.back().view();
    std::normal_distribution<float> normal(mean, spread);
    for (Index i = 0; i < view.num_elements(); ++i) {
      if (dtype == DType::kF32) view.as<float>()[i] = normal(random_);
      if (dtype == DType::kBF16) view.as<bf16>()[i] = bf16(normal(random_));
    }
    return view;
  }
  TensorView ints(const std::vector<int32_t>& values) {
    buffers_.emplace_back(DType::kI32, Shape{static_cast<Index>(values.size())});
    std::copy(values.begin(), values.end(), buffers_.back().view().as<int32_t>());
    return buffers_.back().view();
  }
  // num_seqs sequences of q_len tokens after context_len others.
  Sequences sequences(Index num_seqs, Index q_len, Index context_len) {
    std::vector<int32_t> starts{0}, lens;
    for (Index i = 0; i < num_seqs; ++i) {
      starts.push_back(static_cast<int32_t>((i + 1) * q_len));
      lens.push_back(static_cast<int32_t>(context_len + q_len));
    }
    return {ints(starts), ints(lens), num_seqs, q_len == 1 ? num_seqs : 0};
  }
  TensorView pages(Index num_seqs) {
    std::vector<int32_t> values;
    for (Index i = 0; i < num_seqs; ++i) values.push_back(static_cast<int32_t>(i));
    return ints(values);
  }
  StateCache state(Index num_seqs, Index num_v_heads) {
    StateCache cache{.conv_dtype = dtype_,
                     .num_pages = num_seqs,
                     .num_v_heads = num_v_heads,
                     .k_dim = kDim,
                     .v_dim = kDim,
                     .conv_kernel = 4,
                     .conv_channels = (2 * kNumKeyHeads + num_v_heads) * kDim};
    cache.conv_offset_bytes = num_v_heads * kDim * kDim * 4;
    cache.page_stride_bytes = cache.conv_offset_bytes + 3 * cache.conv_channels * 4;
    buffers_.emplace_back(static_cast<size_t>(num_seqs * cache.page_stride_bytes));
    cache.data = buffers_.back().data();
    return cache;
  }

 private:
  DType dtype_;
  int num_threads_;
  ThreadPool pool_;
  Scratch scratch_;
  std::vector<Buffer> buffers_;
  std::mt19937 random_;
};

// The model lays q, k and v out side by side; so does this.
GatedDelta delta_args(Setup& setup, DType dtype, Index num_seqs, Index q_len, Index num_v_heads) {
  const Index n = num_seqs * q_len;
  const TensorView qkv = setup.random(dtype, {n, (2 * kNumKeyHeads + num_v_heads) * kDim});
  const Index key_width = kNumKeyHeads * kDim;
  GatedDelta args;
  args.q = qkv.cols(0, key_width).split_last(kNumKeyHeads, kDim);
  args.k = qkv.cols(key_width, key_width).split_last(kNumKeyHeads, kDim);
  args.v = qkv.cols(2 * key_width, num_v_heads * kDim).split_last(num_v_heads, kDim);
  args.z = setup.random(dtype, {n, num_v_heads, kDim});
  args.out = setup.random(dtype, {n, num_v_heads, kDim});
  args.a = setup.random(dtype, {n, num_v_heads}, -4);
  args.b = setup.random(dtype, {n, num_v_heads});
  args.a_log = setup.random(DType::kF32, {num_v_heads}, 0, 0.3f);
  args.dt_bias = setup.random(DType::kF32, {num_v_heads}, 0, 0.3f);
  args.norm = setup.random(DType::kF32, {kDim}, 1, 0.1f);
  args.state = setup.state(num_seqs, num_v_heads);
  args.state_pages = setup.pages(num_seqs);
  args.seqs = setup.sequences(num_seqs, q_len, 64);
  return args;
}

void gated_delta_prefill(benchmark::State& state, DType dtype) {
  const Index num_tokens = state.range(0), num_v_heads = state.range(1);
  Setup setup(dtype);
  const GatedDelta args = delta_args(setup, dtype, 1, num_tokens, num_v_heads);
  for (auto _ : state) gated_delta(setup.context(), args);
  state.counters["GFLOP/s"] =
      benchmark::Counter(11.5e-3 * static_cast<double>(num_tokens / kGdnChunk * num_v_heads),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void gated_delta_decode(benchmark::State& state, DType dtype) {
  const Index num_seqs = state.range(0), num_v_heads = state.range(1);
  Setup setup(dtype);
  const GatedDelta args = delta_args(setup, dtype, num_seqs, 1, num_v_heads);
  for (auto _ : state) gated_delta(setup.context(), args);
  state.counters["GB/s"] =
      benchmark::Counter(2 * 4e-9 * static_cast<double>(num_seqs * num_v_heads * kDim * kDim),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void conv(benchmark::State& state, DType dtype) {
  const Index num_tokens = state.range(0), num_v_heads = state.range(1);
  Setup setup(dtype);
  CausalConv args;
  args.state = setup.state(1, num_v_heads);
  args.x = setup.random(dtype, {num_tokens, args.state.conv_channels});
  args.out = setup.random(dtype, {num_tokens, args.state.conv_channels});
  args.weight = setup.random(DType::kF32, {args.state.conv_channels, 4});
  args.state_pages = setup.pages(1);
  args.seqs = setup.sequences(1, num_tokens, 64);
  for (auto _ : state) causal_conv(setup.context(), args);
  state.counters["GB/s"] = benchmark::Counter(2e-9 * static_cast<double>(args.x.size_bytes()),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void norm(benchmark::State& state, DType dtype) {
  const Index num_tokens = state.range(0), n = state.range(1);
  Setup setup(dtype);
  const RmsNorm args{.x = setup.random(dtype, {num_tokens, n}),
                     .delta = setup.random(dtype, {num_tokens, n}, 0, 1e-3f),
                     .weight = setup.random(DType::kF32, {n}),
                     .out = setup.random(dtype, {num_tokens, n})};
  for (auto _ : state) rms_norm(setup.context(), args);
  state.counters["GB/s"] = benchmark::Counter(4e-9 * static_cast<double>(args.x.size_bytes()),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void glu(benchmark::State& state, DType dtype) {
  const Index num_tokens = state.range(0), n = state.range(1);
  Setup setup(dtype);
  const SwiGlu args{.gate_up = setup.random(dtype, {num_tokens, 2 * n}),
                    .out = setup.random(dtype, {num_tokens, n})};
  for (auto _ : state) swiglu(setup.context(), args);
  state.counters["GB/s"] = benchmark::Counter(3e-9 * static_cast<double>(args.out.size_bytes()),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

#define LONGSPAN_BENCH(fn, dtype)               \
  BENCHMARK_CAPTURE(fn, dtype, DType::k##dtype) \
      ->Unit(benchmark::kMillisecond)           \
      ->UseRealTime()                           \
      ->MeasureProcessCPUTime()
LONGSPAN_BENCH(gated_delta_prefill, BF16)
    ->Args({256, 16})
    ->Args({4096, 16})
    ->Args({4096, 48})
    ->Args({37, 16});
LONGSPAN_BENCH(gated_delta_prefill, F32)->Args({4096, 16});
LONGSPAN_BENCH(gated_delta_decode, BF16)->Args({1, 16})->Args({8, 16})->Args({1, 48})->Args({8, 48});
LONGSPAN_BENCH(conv, BF16)->Args({1, 16})->Args({4096, 16})->Args({4096, 48});
LONGSPAN_BENCH(norm, BF16)->Args({1, 1024})->Args({4096, 1024})->Args({4096, 5120});
LONGSPAN_BENCH(glu, BF16)->Args({1, 3584})->Args({4096, 3584});

}  // namespace
}  // namespace longspan::ops::cpu

BENCHMARK_MAIN();
