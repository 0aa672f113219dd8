// Prompt chunks of the gated delta rule on matrix units: bf16, heads of 128 x 128, rows in whole 16-byte
// words. The plain form (gdn_prefill.cc) takes what this one does not. One kernel makes T and P of all cells
// of a batch at once, one goes from cell to cell with S, one norms and gates; on Hopper one does both.
#include "ops/device/gdn_mma.h"
#include "ops/device/activation.h"

#include <algorithm>

namespace longspan::ops::device {
namespace gdn {
namespace {

// Bounds the workspace, 58 KB a cell and value head. 4096 tokens fit, wherever in a cell they begin.
constexpr int kCellsAtOnce = 65;

// Block (cell, value head): 16 lanes a token, a word each.
struct OutputKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;
  CellTable cells;
  Workspace workspace;
  GatedNorm<T> norm;
  int first_cell;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    const Cell cell = cells.find(first_cell + block_idx().x);
    if (cell.seq_idx < 0) return;
    const int head = block_idx().y;
    const int c = thread_idx() % kWords * kVec<T>;
    const Global<float> from = workspace.of(block_idx().x, head).o + c;
    const Vec<float, 4> weights[2] = {norm.norm.load<4>(c), norm.norm.load<4>(c + 4)};
#pragma unroll 4
    for (int row = thread_idx() / kWords; row < kCell; row += kThreads / kWords) {
      const int64_t token = cell.first_row + (row < cell.num_rows ? row : 0);
      const Vec<float, 4> o[2] = {from.load<4>(row * kDim), from.load<4>(row * kDim + 4)};
      Vec<T, kVec<T>> word = norm.z.row(token, head).load<kVec<T>>(c);
      float squares = 0.0f;
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) squares += o[e / 4].v[e % 4] * o[e / 4].v[e % 4];
      const float scale = norm.scale(group_sum<kWords>(squares));
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
        const float gate = to_float(word.v[e]);
        word.v[e] = from_float<T>(o[e / 4].v[e % 4] * scale * weights[e / 4].v[e % 4] * silu(gate));
      }
      if (row < cell.num_rows) norm.out.row(token, head).store<kVec<T>>(c, word);
    }
  }
};

Workspace make_workspace(const Context& context, int num_cells, Index num_heads) {
  const Index count = num_cells * num_heads;
  auto* next = static_cast<char*>(context.scratch.reserve(static_cast<size_t>(count) * Workspace::kBytes));
  const auto take = [&]<class E>(int64_t each) {
    E* const at = reinterpret_cast<E*>(next);
    next += static_cast<size_t>(count * each) * sizeof(E);
    return Global<E>{at};
  };
  Workspace workspace{.num_heads = static_cast<int>(num_heads)};
  workspace.t = take.operator()<Words4>(kTriangleWords);
  workspace.p = take.operator()<Words4>(kTriangleWords);
  workspace.scales = take.operator()<float>(Workspace::kScales);
  workspace.o = take.operator()<float>(kCell * kDim);
  return workspace;
}

bool fits_matrix_units(const Context& context, const GatedDelta& args) {
  const DeviceInfo& info = context.device.info();
  return info.wave == kMmaWave && info.shared_bytes >= kScanSharedBytes && args.q.dtype == DType::kBF16 &&
         args.state.k_dim == kDim && args.state.v_dim == kDim && takes_words(args.q) && takes_words(args.k) &&
         takes_words(args.v) && takes_words(args.z) && takes_words(args.out) && takes_words(args.norm);
}

}  // namespace
}  // namespace gdn

bool gdn_mma(const Context& context, const GatedDelta& args) {
  using namespace gdn;
  if (!fits_matrix_units(context, args)) return false;
  const int first_seq = static_cast<int>(args.seqs.num_decode_seqs);
  const int num_seqs = static_cast<int>(args.seqs.num_seqs) - first_seq;
  const int num_cells = max_cells(args.q.dim(0) - first_seq, num_seqs);
  Batch batch{.cells = {seq_table(args.seqs), first_seq, first_seq + num_seqs},
              .num_seqs = num_seqs,
              .workspace = make_workspace(context, std::min(num_cells, kCellsAtOnce), args.state.num_v_heads),
              .checkpoints = upload_checkpoints(context, args.checkpoints),
              .num_checkpoints = static_cast<int>(args.checkpoints.size())};
  const GdnInputs<T> in = gdn_inputs<T>(args);
  for (batch.first = 0; batch.first < num_cells; batch.first += kCellsAtOnce) {
    batch.count = std::min(kCellsAtOnce, num_cells - batch.first);
    make_cells(context, in, batch);
    if (scan_cells_wgmma(context, args, batch)) continue;
    scan_cells(context, in, batch);
    launch(context.device, {.name = "gdn_mma_output", .grid = {batch.count, in.state.num_v_heads}},
           OutputKernel{batch.cells, batch.workspace, gated_norm<T>(args), batch.first});
  }
  return true;
}

}  // namespace longspan::ops::device
