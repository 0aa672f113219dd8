#include "ops/device/gdn_mma.h"

namespace longspan::ops::device::gdn {
namespace {

// Block (64 columns of v_dim, value head, sequence): the batch's cells of that sequence in order, the next
// one on its way while one is worked on. Four waves carry S, 16 columns each, in registers; four more make O
// of the same columns beside them, so that one's products fill the other's pauses. All work on transposes:
// S^T [16, k_dim] and R^T, V'^T, O^T [16, tokens] are C fragments, and the A fragments of the next product;
// K, Q, T and P are the right sides. In two phases a cell: R and V' beside Q S, then the next S beside P V'.
struct ScanKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 256;
  static constexpr int kColumnWaves = 4;
  static constexpr int kColumns = 16 * kColumnWaves;
  static constexpr int kValuePitch = kColumns + 8;
  static constexpr int kStateWords = kColumnWaves * (kDim / 16) * 2 * kMmaWave;
  static constexpr int kValueWords = kColumnWaves * kTiles * 2 * kMmaWave;
  static constexpr size_t kStageBytes =
      2 * shared_bytes<T>(kCell * kPitch) + shared_bytes<T>(kCell * kValuePitch) +
      2 * shared_bytes<Words4>(kTriangleWords) + shared_bytes<float>(Workspace::kScales);
  static constexpr size_t kSharedBytes =
      2 * kStageBytes + shared_bytes<Words4>(kStateWords) + shared_bytes<Words4>(kValueWords);
  GdnInputs<T> in;
  Batch batch;

  struct Stage {     // one cell in shared memory
    Shared<T> k, q;  // [kCell, kPitch]
    Shared<T> v;     // [kCell, kValuePitch]: this block's columns
    Shared<Words4> t, p;
    Shared<float> scales;
  };
  using State = FragmentC[kDim / 8];
  using Tokens = FragmentC[kCell / 8];

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    const int head = block_idx().y;
    const int seq_idx = batch.cells.first_seq + block_idx().z;
    const CellRow row = batch.cells.row(seq_idx);
    const auto [begin, end] = batch.of(row);
    if (begin >= end) return;
    SharedPool pool;
    const Shared<Words4> stages = pool.take<Words4>(2 * kStageBytes / sizeof(Words4));
    const Shared<Words4> s_parts = pool.take<Words4>(kStateWords) + wave() * (kDim / 16) * 2 * kMmaWave;
    const Shared<Words4> v_parts = pool.take<Words4>(kValueWords) + wave() * kTiles * 2 * kMmaWave;
    load(row, begin, head, stage(stages, false));
    commit_copies();
    const Global<float> own = in.state.s(in.pages.get(seq_idx), head);
    if (carries_state())
      carry(row, begin, end, head, own, stages, s_parts, v_parts);
    else
      make_outputs(row, begin, end, head, stages, s_parts, v_parts);
  }

  // The two sides meet at the same barriers: two a cell.
  DEVICE_FN void carry(const CellRow& row, int begin, int end, int head, Global<float> own,
                       Shared<Words4> stages, Shared<Words4> s_parts, Shared<Words4> v_parts) const {
    State s;
    load_state(own, row.cell(begin).position == 0, s);
    put_parts<kDim / 16>(s, s_parts);
    for (int i = begin; i < end; ++i) {
      const Stage at = next_stage(row, i, begin, end, head, stages);
      Tokens rest = {}, v = {};
      multiply_state(at.k, s_parts, rest);
      finish_rest(at, rest);
      multiply_triangle(at.t, rest, v);
      put_parts<kTiles>(v, v_parts);
      meet();
      scale(at, Workspace::kOfValues, v);
      add_keys(at, v, s);
      put_parts<kDim / 16>(s, s_parts);
      save(row.cell(i), head, s);
    }
    store_state(own, s);
  }

  DEVICE_FN void make_outputs(const CellRow& row, int begin, int end, int head, Shared<Words4> stages,
                              Shared<Words4> s_parts, Shared<Words4> v_parts) const {
    for (int i = begin; i < end; ++i) {
      const Stage at = next_stage(row, i, begin, end, head, stages);
      Tokens o = {};
      multiply_state(at.q, s_parts, o);
      scale(at, Workspace::kOfQueries, o);
      meet();
      multiply_triangle(at.p, v_parts, o);
      const Global<float> out = batch.workspace.of(row.first + i - batch.first, head).o;
#pragma unroll
      for (int n = 0; n < kCell / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          out.put((8 * n + pair() + e % 2) * kDim + column() + e / 2 * 8, o[n].v[e]);
    }
  }

  // Between the phases of a cell.
  static DEVICE_FN void meet() { block_sync_branches(kThreads); }

  // Cell i, arrived; the one behind it is sent for.
  DEVICE_FN Stage next_stage(const CellRow& row, int i, int begin, int end, int head,
                             Shared<Words4> stages) const {
    const bool odd = (i - begin) % 2 != 0;
    wait_copies<0>();
    meet();
    if (i + 1 < end) load(row, i + 1, head, stage(stages, !odd));
    commit_copies();
    return stage(stages, odd);
  }

  // All of a stage lies at fixed distances from its first byte.
  static DEVICE_FN Stage stage(Shared<Words4> stages, bool second) {
    const Shared<Words4> t = stages + (second ? static_cast<int>(kStageBytes / sizeof(Words4)) : 0);
    const Shared<Words4> p = t + kTriangleWords;
    const Shared<T> k{reinterpret_cast<T*>((p + kTriangleWords).data)};
    const Shared<T> q = k + kCell * kPitch;
    const Shared<T> v = q + kCell * kPitch;
    return {k, q, v, t, p, {reinterpret_cast<float*>((v + kCell * kValuePitch).data)}};
  }

  DEVICE_FN void load(const CellRow& row, int i, int head, const Stage& to) const {
    const Cell cell = row.cell(i);
    const Workspace from = batch.workspace.of(row.first + i - batch.first, head);
    copy_tile<kThreads, kWords>(in.k, head / in.heads_per_key, 0, cell, to.k, kPitch);
    copy_tile<kThreads, kWords>(in.q, head / in.heads_per_key, 0, cell, to.q, kPitch);
    copy_tile<kThreads, kColumns / kVec<T>>(in.v, head, block_idx().x * kColumns, cell, to.v, kValuePitch);
    for (int w = thread_idx(); w < kTriangleWords; w += kThreads) {
      copy_async(to.t.data + w, (from.t + w).data, true);
      copy_async(to.p.data + w, (from.p + w).data, true);
    }
    if (thread_idx() < Workspace::kScales / 4)
      copy_async(to.scales.data + 4 * thread_idx(), (from.scales + 4 * thread_idx()).data, true);
  }

  static DEVICE_FN bool carries_state() { return thread_idx() < kColumnWaves * kMmaWave; }
  static DEVICE_FN int wave() { return thread_idx() / kMmaWave % kColumnWaves; }
  // The lane's columns are column() and column() + 8 of v_dim, its tokens or rows of S pair() and the next of
  // each eight.
  static DEVICE_FN int column() {
    return block_idx().x * kColumns + wave() * 16 + thread_idx() % kMmaWave / 4;
  }
  static DEVICE_FN int pair() { return thread_idx() % 4 * 2; }

  DEVICE_FN void load_state(Global<float> from, bool fresh, State& s) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[n].v[e] = fresh ? 0.0f : from.get((8 * n + pair() + e % 2) * kDim + column() + e / 2 * 8);
  }
  DEVICE_FN void store_state(Global<float> to, const State& s) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) to.put((8 * n + pair() + e % 2) * kDim + column() + e / 2 * 8, s[n].v[e]);
  }
  DEVICE_FN void save(const Cell& cell, int head, const State& s) const {
    for (int i = 0; i < batch.num_checkpoints; ++i) {
      const Global<int32_t> item{reinterpret_cast<int32_t*>(batch.checkpoints.data + i)};
      if (item.get(0) == cell.seq_idx && item.get(1) == cell.position + cell.num_rows)
        store_state(in.state.s(item.get(2), head), s);
    }
  }

  // C fragments [16, 16 kCount] as the A fragments of both sides' products: step, part, lane.
  static DEVICE_FN int part_word(int step, int part) {
    return (step * 2 + part) * kMmaWave + thread_idx() % kMmaWave;
  }
  template <int kCount>
  static DEVICE_FN void put_parts(const FragmentC (&x)[2 * kCount], Shared<Words4> parts) {
#pragma unroll
    for (int d = 0; d < kCount; ++d) {
      const SplitA a = split(x[2 * d], x[2 * d + 1]);
      parts.put(part_word(d, 0), {{a.high.v[0], a.high.v[1], a.high.v[2], a.high.v[3]}});
      parts.put(part_word(d, 1), {{a.low.v[0], a.low.v[1], a.low.v[2], a.low.v[3]}});
    }
  }
  static DEVICE_FN SplitA get_parts(Shared<Words4> parts, int step) {
    const Words4 high = parts.get(part_word(step, 0)), low = parts.get(part_word(step, 1));
    return {{{high.v[0], high.v[1], high.v[2], high.v[3]}}, {{low.v[0], low.v[1], low.v[2], low.v[3]}}};
  }

  // out = S^T rows^T
  DEVICE_FN void multiply_state(Shared<T> rows, Shared<Words4> s_parts, Tokens& out) const {
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      const SplitA a = get_parts(s_parts, d);
      FragmentB b[2 * kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        load_b_rows(rows + n * 16 * kPitch + d * 16, kPitch, b[2 * n], b[2 * n + 1]);
#pragma unroll
      for (int n = 0; n < 2 * kTiles; ++n) multiply_add<T>(out[n], a.high, b[n]);
#pragma unroll
      for (int n = 0; n < 2 * kTiles; ++n) multiply_add<T>(out[n], a.low, b[n]);
    }
  }

  // R^T of K S.
  DEVICE_FN void finish_rest(const Stage& at, Tokens& rest) const {
    const int lane = thread_idx() % kMmaWave;
    const Shared<T> v = at.v + wave() * 16;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t pairs[4];  // tokens 0-7 of columns 0-7 and 8-15, tokens 8-15
      load_matrices_transposed(pairs,
                               v.data + (n * 16 + lane / 16 * 8 + lane % 8) * kValuePitch + lane / 8 % 2 * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Vec<float, 2> factor =
            at.scales.load<2>(Workspace::kOfKeys * kCell + n * 16 + half * 8 + pair());
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const uint32_t word = pairs[2 * half + e / 2];
          const float value =
              bfloat_to_float(static_cast<uint16_t>(e % 2 == 0 ? word & 0xffffu : word >> 16));
          float& r = rest[2 * n + half].v[e];
          r = value - factor.v[e % 2] * r;
        }
      }
    }
  }

  DEVICE_FN void scale(const Stage& at, int which, Tokens& x) const {
#pragma unroll
    for (int n = 0; n < kCell / 8; ++n) {
      const Vec<float, 2> factor = at.scales.load<2>(which * kCell + n * 8 + pair());
#pragma unroll
      for (int e = 0; e < 4; ++e) x[n].v[e] *= factor.v[e % 2];
    }
  }

  // out += x triangle^T, of fragments or of their parts
  DEVICE_FN void multiply_triangle(Shared<Words4> triangle, const Tokens& x, Tokens& out) const {
#pragma unroll
    for (int d = 0; d < kTiles; ++d) multiply_column(triangle, d, split(x[2 * d], x[2 * d + 1]), out);
  }
  DEVICE_FN void multiply_triangle(Shared<Words4> triangle, Shared<Words4> parts, Tokens& out) const {
#pragma unroll
    for (int d = 0; d < kTiles; ++d) multiply_column(triangle, d, get_parts(parts, d), out);
  }
  // As load_b_rows.
  static DEVICE_FN void load_tile(Shared<Words4> triangle, int row_tile, int col_tile, int part,
                                  FragmentB& first, FragmentB& second) {
    const int lane = thread_idx() % kMmaWave;
    uint32_t v[4];
    load_matrices(v, triangle.data + triangle_word(row_tile * 16 + lane / 16 * 8 + lane % 8,
                                                   2 * col_tile + lane / 8 % 2, part));
    first = {{v[0], v[1]}};
    second = {{v[2], v[3]}};
  }
  DEVICE_FN void multiply_column(Shared<Words4> triangle, int d, const SplitA& a, Tokens& out) const {
    FragmentB highs[2 * kTiles], lows[2 * kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n < d) continue;
      load_tile(triangle, n, d, 0, highs[2 * n], highs[2 * n + 1]);
      load_tile(triangle, n, d, 1, lows[2 * n], lows[2 * n + 1]);
    }
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n)
      if (n >= 2 * d) multiply_add<T>(out[n], a.high, highs[n]);
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n)
      if (n >= 2 * d) multiply_add<T>(out[n], a.low, highs[n]);
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n)
      if (n >= 2 * d) multiply_add<T>(out[n], a.high, lows[n]);
  }

  // S^T <- e^G_last S^T + v K
  DEVICE_FN void add_keys(const Stage& at, const Tokens& v, State& s) const {
    const float decay = at.scales.get(Workspace::kOfState * kCell);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n].v[e] *= decay;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      const SplitA a = split(v[2 * d], v[2 * d + 1]);
#pragma unroll
      for (int n = 0; n < kDim / 16; n += 2) {
        FragmentB k[4];
        load_b(at.k + d * 16 * kPitch + n * 16, kPitch, k[0], k[1]);
        load_b(at.k + d * 16 * kPitch + n * 16 + 16, kPitch, k[2], k[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_add<T>(s[2 * n + i], a.high, k[i]);
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply_add<T>(s[2 * n + i], a.low, k[i]);
      }
    }
  }
};

}  // namespace

const size_t kScanSharedBytes = ScanKernel::kSharedBytes;

void scan_cells(const Context& context, const GdnInputs<T>& in, const Batch& batch) {
  launch(context.device,
         {.name = "gdn_mma_scan",
          .grid = {kDim / ScanKernel::kColumns, in.state.num_v_heads, batch.num_seqs},
          .shared_bytes = ScanKernel::kSharedBytes},
         ScanKernel{in, batch});
}

}  // namespace longspan::ops::device::gdn
