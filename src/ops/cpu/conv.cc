// Depthwise causal convolution with SiLU. Every output is the same sum over taps, oldest first, so decode
// rows and prompt chunks agree to the bit. Memory-bound: about conv_kernel reads (cached) and one write an
// element.
#include <array>
#include <cstring>

#include "ops/cpu/gdn.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/conv.cc"
#include <hwy/foreach_target.h>

#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

constexpr Index kRowsTogether = 4;

// The input rows under some neighbouring outputs: rows[i + j] meets tap j of output i. nullptr reads as zeros
// (before position 0).
template <class T>
using ConvInputs = std::array<const T*, kMaxConvKernel + kRowsTogether - 1>;

// out_i[c] = silu(sum_j taps[j][c] inputs[i + j][c]) for kRows rows. kTaps 0: `num_taps` decides.
template <class T, Index kTaps, Index kRows>
void conv_block(const ConvInputs<T>& inputs, const float* taps, Index num_taps, Index num_channels, T* out,
                Index out_stride) {
  if constexpr (kTaps > 0) num_taps = kTaps;
  for_each_vector(num_channels, [&](Index c, auto extent) HWY_ATTR {
    Vec sum[kRows];
    HWY_UNROLL(4)
    for (Index i = 0; i < kRows; ++i) sum[i] = hn::Zero(F32());
    HWY_UNROLL(7)
    for (Index row = 0; row < num_taps + kRows - 1; ++row) {
      const T* input = inputs[static_cast<size_t>(row)];
      if (input == nullptr) continue;
      const Vec x = load(input + c, extent);
      HWY_UNROLL(4)
      for (Index i = 0; i < kRows; ++i)
        if (row >= i && row - i < num_taps)
          sum[i] = hn::MulAdd(load(taps + (row - i) * kConvBlock + c), x, sum[i]);
    }
    HWY_UNROLL(4)
    for (Index i = 0; i < kRows; ++i) store(silu(sum[i]), out + i * out_stride + c, extent);
  });
}

// Rows span.begin .. span.end, channels first_channel .. + num_channels, taps [conv_kernel, kConvBlock].
template <class T>
void conv_rows_of(const CausalConv& args, const ConvSpan& span, Index first_channel, Index num_channels,
                  const float* taps) {
  const Index num_taps = args.state.conv_kernel;
  const T* x = args.x.as<const T>() + first_channel;
  T* out = args.out.as<T>() + first_channel;
  const T* history = span.history != nullptr ? static_cast<const T*>(span.history) + first_channel : nullptr;
  const auto together = num_taps == 4 ? conv_block<T, 4, kRowsTogether> : conv_block<T, 0, kRowsTogether>;
  const auto single = num_taps == 4 ? conv_block<T, 4, 1> : conv_block<T, 0, 1>;
  ConvInputs<T> inputs{};
  for (Index row = span.begin; row < span.end;) {
    const Index num_rows = row + kRowsTogether <= span.end ? kRowsTogether : 1;
    for (Index i = 0; i < num_taps + num_rows - 1; ++i) {
      const Index token = row - span.first_row - (num_taps - 1) + i;  // in this step's chunk
      const T* input = nullptr;
      if (token >= 0)
        input = x + (span.first_row + token) * args.x.stride(0);
      else if (span.history != nullptr)
        input = history + (num_taps - 1 + token) * args.state.conv_channels;
      inputs[static_cast<size_t>(i)] = input;
    }
    const auto block = num_rows == 1 ? single : together;
    block(inputs, taps, num_taps, num_channels, out + row * args.out.stride(0), args.out.stride(0));
    row += num_rows;
  }
}

// taps[j][c] = weight[c][j]
void transpose_taps(const float* weight, Index weight_stride, Index num_taps, Index num_channels,
                    float* taps) {
  Index c = 0;
  if (num_taps == 4 && weight_stride == 4)
    for (; c + lanes() <= num_channels; c += lanes()) {
      Vec tap0, tap1, tap2, tap3;
      hn::LoadInterleaved4(F32(), weight + 4 * c, tap0, tap1, tap2, tap3);
      store(tap0, taps + c);
      store(tap1, taps + kConvBlock + c);
      store(tap2, taps + 2 * kConvBlock + c);
      store(tap3, taps + 3 * kConvBlock + c);
    }
  for (; c < num_channels; ++c)
    for (Index j = 0; j < num_taps; ++j) taps[j * kConvBlock + c] = weight[c * weight_stride + j];
}

void conv_rows(const CausalConv& args, const ConvSpan& span, Index first_channel, Index num_channels,
               const float* taps) {
  dispatch_dtype(args.x.dtype,
                 [&]<class T>() { conv_rows_of<T>(args, span, first_channel, num_channels, taps); });
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {

HWY_EXPORT(conv_rows);
HWY_EXPORT(transpose_taps);

constexpr Index kConvRows = 128;  // rows a task: enough to pay for turning its weights around

char* history_of(const StateCache& state, Index page) {
  return static_cast<char*>(state.data) + page * state.page_stride_bytes + state.conv_offset_bytes;
}

// Rows begin .. end of the step, whichever sequences they belong to.
void conv_task(const CausalConv& args, Index begin, Index end, Index first_channel, float* taps) {
  const Index num_channels = std::min(kConvBlock, args.state.conv_channels - first_channel);
  HWY_DYNAMIC_DISPATCH(transpose_taps)
  (args.weight.as<float>() + first_channel * args.weight.stride(0), args.weight.stride(0),
   args.state.conv_kernel, num_channels, taps);
  const auto kernel = HWY_DYNAMIC_DISPATCH(conv_rows);
  for (Index seq_idx = 0; seq_idx < args.seqs.num_seqs; ++seq_idx) {
    const SeqRows seq = seq_rows(args.seqs, seq_idx);
    ConvSpan span;
    span.first_row = seq.first_row;
    span.begin = std::max(begin, seq.first_row);
    span.end = std::min(end, seq.first_row + seq.num_rows);
    if (span.begin >= span.end) continue;
    if (seq.context_len > 0) span.history = history_of(args.state, args.state_pages.as<int32_t>()[seq_idx]);
    kernel(args, span, first_channel, num_channels, taps);
  }
}

// `to` <- the conv_kernel - 1 inputs that end with this step's token num_rows - 1. `to` may be the old
// history: rows are written oldest first, and each comes from a later one.
void write_history(const CausalConv& args, const SeqRows& seq, Index num_rows, const char* old_history,
                   char* to) {
  const auto element_bytes = static_cast<Index>(dtype_size(args.x.dtype));
  const Index row_bytes = args.state.conv_channels * element_bytes;
  const Index num_kept = args.state.conv_kernel - 1;
  for (Index j = 0; j < num_kept; ++j) {
    const Index token = num_rows - num_kept + j;
    char* row = to + j * row_bytes;
    if (token >= 0)
      std::memcpy(
          row,
          static_cast<const char*>(args.x.data) + (seq.first_row + token) * args.x.stride(0) * element_bytes,
          static_cast<size_t>(row_bytes));
    else if (seq.context_len > 0)
      std::memmove(row, old_history + (num_kept + token) * row_bytes, static_cast<size_t>(row_bytes));
    else
      std::memset(row, 0, static_cast<size_t>(row_bytes));
  }
}

void update_history(const CausalConv& args, Index seq_idx) {
  const SeqRows seq = seq_rows(args.seqs, seq_idx);
  char* history = history_of(args.state, args.state_pages.as<int32_t>()[seq_idx]);
  for (const StateCheckpoint& checkpoint : args.checkpoints) {
    const Index num_rows = checkpoint.num_tokens - seq.context_len;
    if (checkpoint.seq_idx == seq_idx && num_rows > 0 && num_rows <= seq.num_rows)
      write_history(args, seq, num_rows, history, history_of(args.state, checkpoint.page));
  }
  write_history(args, seq, seq.num_rows, history, history);
}

}  // namespace

void causal_conv(const Context& context, const CausalConv& args) {
  CHECK_MSG(args.state.conv_kernel >= 2 && args.state.conv_kernel <= kMaxConvKernel,
            "[causal_conv] conv_kernel: got {}, need 2 .. {}", args.state.conv_kernel, kMaxConvKernel);
  const Index num_rows = args.x.dim(0);
  const Index num_blocks = (args.state.conv_channels + kConvBlock - 1) / kConvBlock;
  const Index num_row_tasks = (num_rows + kConvRows - 1) / kConvRows;
  context.scratch.reserve(static_cast<size_t>(kMaxConvKernel * kConvBlock) * sizeof(float));
  context.pool.parallel_for(num_row_tasks * num_blocks, [&](int64_t task, int thread) {
    const Index begin = task / num_blocks * kConvRows;
    conv_task(args, begin, std::min(begin + kConvRows, num_rows), task % num_blocks * kConvBlock,
              static_cast<float*>(context.scratch.of_thread(thread)));
  });
  // Only now: a history must outlive every row that reads it.
  context.pool.parallel_for(args.seqs.num_seqs, [&](int64_t seq_idx, int) { update_history(args, seq_idx); });
}

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
