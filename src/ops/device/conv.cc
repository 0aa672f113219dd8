// Depthwise causal convolution with SiLU, and the inputs it leaves for the next step: prompt chunks.
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
    out.row(row).set(c, sum / (1.0f + expf(-sum)));
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

}  // namespace

void causal_conv(const Context& context, const CausalConv& args) {
  const int first_seq = static_cast<int>(args.seqs.num_decode_seqs);
  const int num_seqs = static_cast<int>(args.seqs.num_seqs) - first_seq;
  if (first_seq > 0) conv_decode(context, args);
  if (num_seqs == 0) return;
  dispatch_element(args.x.dtype, [&]<class T>() {
    const StatePages<T> state = state_pages<T>(args.state);
    const int blocks = ceil_div(state.channels, 256);
    launch(context.device,
           {.name = "causal_conv",
            .grid = {static_cast<int>(args.x.dim(0)) - first_seq, blocks},
            .bytes = 2.0 * static_cast<double>(args.x.size_bytes())},
           ConvKernel<T>{.x = matrix<T>(args.x),
                         .weight = global<float>(args.weight),
                         .out = matrix<T>(args.out),
                         .state = state,
                         .state_pages = global<int32_t>(args.state_pages),
                         .seqs = seq_table(args.seqs),
                         .first_seq = first_seq});
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
