// Depthwise causal convolution with SiLU, and the inputs it leaves for the next step: prompt chunks.
#include "ops/device/activation.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/paged_kv.h"
#include "ops/device/state.h"

namespace longspan::ops::device {
namespace {

// Input `idx` of a sequence's chunk, the history before it: -1 is the last input of the step before.
template <class T>
struct ConvInput {
  Matrix<T> x;        // [num_tokens, channels]
  Global<T> history;  // [kernel - 1, channels]
  Span span;
  int kernel;
  int channels;

  DEVICE_FN T get(int idx, int c) const {
    if (idx >= 0) return x.row(span.first_row + idx).get(c);
    if (span.context_len == 0) return from_float<T>(0.0f);
    return history.get(static_cast<int64_t>(kernel - 1 + idx) * channels + c);
  }
};

// Thread: one token of one channel. Bound by memory; neighbours' inputs come from the cache.
template <class T>
struct ConvKernel {
  static constexpr int kThreads = 256;
  Matrix<T> x;           // [num_tokens, channels]
  Global<float> weight;  // [channels, kernel]
  Matrix<T> out;         // [num_tokens, channels]
  StatePages<T> state;
  Global<int32_t> state_pages;  // [num_seqs]
  SeqTable seqs;
  int first_seq;  // behind the decode rows, one token each

  DEVICE_FN void operator()() const {
    const int c = block_idx().y * kThreads + thread_idx();
    if (c >= state.channels) return;
    const int row = first_seq + block_idx().x;
    int seq_idx = first_seq;
    while (row >= seqs.query_start_loc.get(seq_idx + 1)) ++seq_idx;
    const Span span = seqs.span(seq_idx);
    const ConvInput<T> input{x, state.history(state_pages.get(seq_idx)), span, state.kernel, state.channels};
    float sum = 0.0f;
    for (int j = 0; j < state.kernel; ++j)
      sum += weight.get(static_cast<int64_t>(c) * state.kernel + j) *
             to_float(input.get(row - span.first_row - (state.kernel - 1) + j, c));
    out.row(row).set(c, silu(sum));
  }
};

// Thread: four channels over a run of one sequence's tokens, the taps and the last inputs in registers. Few
// registers a thread, so that enough of them wait for memory at once. Sums in ConvKernel's order, whatever
// kRunTokens.
template <class T, int kTaps, int kRunTokens>
struct ConvRunKernel {
  static constexpr int kThreads = 128;
  static constexpr int kRun = kRunTokens;
  static constexpr int kAtOnce = kRun < 8 ? kRun : 8;  // tokens on their way
  static constexpr int kWidth = 4;
  static constexpr int kChannels = kThreads * kWidth;
  static_assert(kTaps == 4 && kRun % kAtOnce == 0);
  using Word = Vec<T, kWidth>;
  Matrix<T> x;           // [num_tokens, channels]
  Global<float> weight;  // [channels, kTaps]
  Matrix<T> out;         // [num_tokens, channels]
  StatePages<T> state;
  Global<int32_t> state_pages;  // [num_seqs]
  SeqTable seqs;
  int first_seq;
  int end_seq;

  DEVICE_FN void operator()() const {
    int run = block_idx().y;
    int seq_idx = first_seq;
    Span span{};
    for (; seq_idx < end_seq; ++seq_idx) {
      span = seqs.span(seq_idx);
      const int runs = (span.num_rows + kRun - 1) / kRun;
      if (run < runs) break;
      run -= runs;
    }
    const int c = block_idx().x * kChannels + thread_idx() * kWidth;
    if (seq_idx == end_seq || c >= state.channels) return;
    Vec<float, kTaps> taps[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) taps[e] = weight.load<kTaps>(static_cast<int64_t>(c + e) * kTaps);
    const int begin = run * kRun;
    const int end = begin + kRun < span.num_rows ? begin + kRun : span.num_rows;
    Word window[kTaps - 1 + kAtOnce];
    const Global<T> history = state.history(state_pages.get(seq_idx));
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) window[j] = input(span, history, begin - (kTaps - 1) + j, c);
    for (int row = begin; row < end; row += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        window[kTaps - 1 + i] =
            x.row(span.first_row + (row + i < end ? row + i : end - 1)).template load<kWidth>(c);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        Word result;
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          float sum = 0.0f;
#pragma unroll
          for (int j = 0; j < kTaps; ++j) sum += taps[e].v[j] * to_float(window[i + j].v[e]);
          result.v[e] = from_float<T>(silu(sum));
        }
        if (row + i < end) out.row(span.first_row + row + i).template store<kWidth>(c, result);
      }
#pragma unroll
      for (int j = 0; j < kTaps - 1; ++j) window[j] = window[j + kAtOnce];
    }
  }

  DEVICE_FN Word input(const Span& span, Global<T> history, int idx, int c) const {
    if (idx >= 0) return x.row(span.first_row + idx).template load<kWidth>(c);
    Word word;
    if (span.context_len > 0)
      return history.template load<kWidth>(static_cast<int64_t>(kTaps - 1 + idx) * state.channels + c);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) word.v[e] = from_float<T>(0.0f);
    return word;
  }
};

// Thread: one channel's history after `num_tokens` tokens of a sequence, to one page. Ascending, so that a
// page may take its own history over.
template <class T>
struct ConvStateKernel {
  static constexpr int kThreads = 256;
  Matrix<T> x;
  StatePages<T> state;
  Global<int32_t> state_pages;    // [num_seqs]
  Global<StateCheckpoint> items;  // or empty: block y writes its sequence's own page, after all of its tokens
  SeqTable seqs;
  int first_seq;  // behind the decode rows

  DEVICE_FN void operator()() const {
    const int c = block_idx().x * kThreads + thread_idx();
    if (c >= state.channels) return;
    int seq_idx = first_seq + block_idx().y;
    int page = -1, num_tokens = -1;
    if (!items.empty()) {
      const Global<int32_t> item{reinterpret_cast<int32_t*>(items.data + block_idx().y)};
      seq_idx = item.get(0);
      num_tokens = item.get(1);
      page = item.get(2);
      if (seq_idx < first_seq) return;
    }
    const Span span = seqs.span(seq_idx);
    const int own_page = state_pages.get(seq_idx);
    if (items.empty()) {
      page = own_page;
      num_tokens = span.context_len + span.num_rows;
    }
    const ConvInput<T> input{x, state.history(own_page), span, state.kernel, state.channels};
    const int rows = num_tokens - span.context_len;
    for (int j = 0; j < state.kernel - 1; ++j)
      state.history(page).put(static_cast<int64_t>(j) * state.channels + c,
                              input.get(rows - (state.kernel - 1) + j, c));
  }
};

constexpr int kWordTaps = 4;    // the models'
constexpr int kFewRows = 1024;  // that take short runs, to be spread over more units

bool history_in_words(const StateCache& state) {
  const Index row_bytes = state.conv_channels * static_cast<Index>(dtype_size(state.conv_dtype));
  return reinterpret_cast<uintptr_t>(state.data) % 16 == 0 && state.page_stride_bytes % 16 == 0 &&
         state.conv_offset_bytes % 16 == 0 && row_bytes % 16 == 0;
}

// Prompt rows, in whole words where they are.
template <class T>
void launch_conv(const Context& context, const CausalConv& args) {
  const StatePages<T> state = state_pages<T>(args.state);
  const int first_seq = static_cast<int>(args.seqs.num_decode_seqs);
  const int end_seq = static_cast<int>(args.seqs.num_seqs);
  const int num_rows = static_cast<int>(args.x.dim(0)) - first_seq;
  const double bytes = 2.0 * static_cast<double>(args.x.size_bytes());
  if (args.state.conv_kernel == kWordTaps && takes_words(args.x) && takes_words(args.out) &&
      takes_words(args.weight) && history_in_words(args.state)) {
    const auto run = [&]<class Kernel>() {
      const int max_runs = num_rows / Kernel::kRun + end_seq - first_seq;
      launch(context.device,
             {.name = "causal_conv",
              .grid = {ceil_div(state.channels, Kernel::kChannels), max_runs},
              .bytes = bytes},
             Kernel{.x = matrix<T>(args.x),
                    .weight = global<float>(args.weight),
                    .out = matrix<T>(args.out),
                    .state = state,
                    .state_pages = global<int32_t>(args.state_pages),
                    .seqs = seq_table(args.seqs),
                    .first_seq = first_seq,
                    .end_seq = end_seq});
    };
    if (num_rows <= kFewRows)
      run.template operator()<ConvRunKernel<T, kWordTaps, 4>>();
    else
      run.template operator()<ConvRunKernel<T, kWordTaps, 32>>();
    return;
  }
  launch(context.device,
         {.name = "causal_conv_any",
          .grid = {num_rows, ceil_div(state.channels, ConvKernel<T>::kThreads)},
          .bytes = bytes},
         ConvKernel<T>{.x = matrix<T>(args.x),
                       .weight = global<float>(args.weight),
                       .out = matrix<T>(args.out),
                       .state = state,
                       .state_pages = global<int32_t>(args.state_pages),
                       .seqs = seq_table(args.seqs),
                       .first_seq = first_seq});
}

}  // namespace

void causal_conv(const Context& context, const CausalConv& args) {
  const int first_seq = static_cast<int>(args.seqs.num_decode_seqs);
  const int num_seqs = static_cast<int>(args.seqs.num_seqs) - first_seq;
  if (first_seq > 0) conv_decode(context, args);
  if (num_seqs == 0) return;
  dispatch_element(args.x.dtype, [&]<class T>() {
    const StatePages<T> state = state_pages<T>(args.state);
    const int blocks = ceil_div(state.channels, 256);
    launch_conv<T>(context, args);
    ConvStateKernel<T> kernel{.x = matrix<T>(args.x),
                              .state = state,
                              .state_pages = global<int32_t>(args.state_pages),
                              .seqs = seq_table(args.seqs),
                              .first_seq = first_seq};
    // Checkpoints first: they may need the history that the sequence's own page loses.
    if (!args.checkpoints.empty()) {
      kernel.items = upload_checkpoints(context, args.checkpoints);
      launch(context.device,
             {.name = "conv_checkpoints", .grid = {blocks, static_cast<int>(args.checkpoints.size())}},
             kernel);
      kernel.items = {};
    }
    launch(context.device, {.name = "conv_state", .grid = {blocks, num_seqs}}, kernel);
  });
}

}  // namespace longspan::ops::device
