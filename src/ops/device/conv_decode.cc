// The convolution of one token a sequence: its output and the history that it leaves, in one pass.
#include "ops/device/activation.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/paged_kv.h"
#include "ops/device/state.h"

namespace longspan::ops::device {
namespace {

// Thread: one channel of one sequence. Bound by latency.
template <class T>
struct ConvDecodeKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;
  static constexpr int kMaxKernel = 8;
  Matrix<T> x;           // [num_tokens, channels]
  Global<float> weight;  // [channels, kernel]
  Matrix<T> out;         // [num_tokens, channels]
  StatePages<T> state;
  Global<int32_t> state_pages;  // [num_seqs]
  SeqTable seqs;
  Global<StateCheckpoint> checkpoints;
  int num_checkpoints;

  DEVICE_FN void operator()() const {
    release_next();
    const int c = block_idx().x * kThreads + thread_idx();
    const bool inside = c < state.channels;
    const int seq_idx = block_idx().y;
    const int row = seqs.query_start_loc.get(seq_idx);
    const int seq_len = seqs.seq_lens.get(seq_idx);
    const Global<T> history = state.history(state_pages.get(seq_idx));
    float taps[kMaxKernel];
#pragma unroll
    for (int j = 0; j < kMaxKernel; ++j)
      if (inside && j < state.kernel) taps[j] = weight.get(static_cast<int64_t>(c) * state.kernel + j);
    await_previous();
    if (!inside) return;

    T inputs[kMaxKernel];  // oldest first, the token's own last
#pragma unroll
    for (int j = 0; j < kMaxKernel; ++j)
      if (j < state.kernel - 1)
        inputs[j] =
            seq_len > 1 ? history.get(static_cast<int64_t>(j) * state.channels + c) : from_float<T>(0.0f);
      else if (j == state.kernel - 1)
        inputs[j] = x.row(row).get(c);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kMaxKernel; ++j)
      if (j < state.kernel) sum += taps[j] * to_float(inputs[j]);
    out.row(row).set(c, silu(sum));

    const int saved = checkpoint_page(checkpoints, num_checkpoints, seq_idx, seq_len);
#pragma unroll
    for (int j = 1; j < kMaxKernel; ++j) {
      if (j >= state.kernel) continue;
      const int64_t at = static_cast<int64_t>(j - 1) * state.channels + c;
      history.put(at, inputs[j]);
      if (saved >= 0) state.history(saved).put(at, inputs[j]);
    }
  }
};

}  // namespace

void conv_decode(const Context& context, const CausalConv& args) {
  dispatch_element(args.x.dtype, [&]<class T>() {
    using Kernel = ConvDecodeKernel<T>;
    const StatePages<T> state = state_pages<T>(args.state);
    CHECK_MSG(state.kernel <= Kernel::kMaxKernel, "[causal_conv] kernel: got {}, need at most {}",
              state.kernel, Kernel::kMaxKernel);
    launch(
        context.device,
        {.name = "conv_decode",
         .grid = {ceil_div(state.channels, Kernel::kThreads), static_cast<int>(args.seqs.num_decode_seqs)}},
        Kernel{.x = matrix<T>(args.x),
               .weight = global<float>(args.weight),
               .out = matrix<T>(args.out),
               .state = state,
               .state_pages = global<int32_t>(args.state_pages),
               .seqs = seq_table(args.seqs),
               .checkpoints = upload_checkpoints(context, args.checkpoints),
               .num_checkpoints = static_cast<int>(args.checkpoints.size())});
  });
}

}  // namespace longspan::ops::device
