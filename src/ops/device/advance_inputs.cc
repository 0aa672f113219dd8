// The inputs of the next decode step, from the token that was chosen here and the tables that are here: one
// launch in the place of the host's copy.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"

namespace longspan::ops::device {
namespace {

// One block, a thread a sequence: a few hundred bytes, bound by latency. Releases nobody early: kernels may
// read a step's inputs before they wait (vendor.h).
struct AdvanceInputsKernel {
  static constexpr int kThreads = 64;
  Global<int32_t> tokens;           // [num_seqs]
  Matrix<int32_t> block_table;      // [num_seqs, max_pages]
  Global<int32_t> token_ids;        // [num_seqs]
  Matrix<int32_t> positions;        // [num_axes, num_seqs]
  Global<int32_t> query_start_loc;  // [num_seqs + 1]
  Global<int32_t> seq_lens;         // [num_seqs], updated
  Global<int32_t> logit_rows;       // [num_seqs]
  Global<int32_t> slots;            // [num_seqs]
  int num_seqs;
  int num_axes;
  int max_pages;
  int page_tokens;

  DEVICE_FN void operator()() const {
    for (int seq = thread_idx(); seq < num_seqs; seq += kThreads) {
      const int32_t token = tokens.get(seq);
      const int32_t position = seq_lens.get(seq);
      token_ids.put(seq, token < 0 ? 0 : token);
      for (int axis = 0; axis < num_axes; ++axis) positions.row(axis).put(seq, position);
      seq_lens.put(seq, position + 1);
      query_start_loc.put(seq, seq);
      logit_rows.put(seq, seq);
      slots.put(seq, slot(seq, position));
    }
    if (thread_idx() == 0) query_start_loc.put(num_seqs, num_seqs);
  }

  DEVICE_FN int32_t slot(int seq, int32_t position) const {
    const int logical = position / page_tokens;
    const int32_t page = logical < max_pages ? block_table.row(seq).get(logical) : -1;
    return page < 0 ? -1 : page * page_tokens + position % page_tokens;
  }
};

}  // namespace

void advance_inputs(const Context& context, const AdvanceInputs& args) {
  launch(context.device, {.name = "advance_inputs"},
         AdvanceInputsKernel{.tokens = global<int32_t>(args.tokens),
                             .block_table = matrix<int32_t>(args.block_table),
                             .token_ids = global<int32_t>(args.token_ids),
                             .positions = matrix<int32_t>(args.positions),
                             .query_start_loc = global<int32_t>(args.query_start_loc),
                             .seq_lens = global<int32_t>(args.seq_lens),
                             .logit_rows = global<int32_t>(args.logit_rows),
                             .slots = global<int32_t>(args.slots),
                             .num_seqs = static_cast<int>(args.tokens.dim(0)),
                             .num_axes = static_cast<int>(args.positions.dim(0)),
                             .max_pages = static_cast<int>(args.block_table.dim(1)),
                             .page_tokens = static_cast<int>(args.page_tokens)});
}

}  // namespace longspan::ops::device
