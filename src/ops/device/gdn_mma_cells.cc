#include "ops/device/gdn_mma.h"

namespace longspan::ops::device::gdn {
namespace {

// Block (cell, value head): T, P and the factors of rows.
struct CellKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;
  static constexpr int kSquare = kCell + 4;  // pitch of fp32 squares; one takes the room of a tile
  static constexpr int kHalf = kCell / 2;
  static_assert(kSquare * sizeof(float) == kPitch * sizeof(T));
  static constexpr size_t kSharedBytes = 2 * shared_bytes<T>(kCell * kPitch) +
                                         shared_bytes<float>(kCell * kSquare) +
                                         3 * shared_bytes<float>(kCell) + shared_bytes<double>(kCell);
  GdnInputs<T> in;
  CellTable cells;
  Workspace workspace;
  int first_cell;

  struct Rows {             // of one cell, in shared memory
    Shared<float> q_scale;  // 1 / |q|, with kDim^-1/2
    Shared<float> k_scale;
    Shared<float> beta;
    Shared<double> g;  // G: sums of log decays. Differences of large ones cancel, hence double
  };

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    const Cell cell = cells.find(first_cell + block_idx().x);
    if (cell.seq_idx < 0) return;
    const int head = block_idx().y;
    const Workspace out = workspace.of(block_idx().x, head);
    SharedPool pool;
    const Shared<T> q = pool.take<T>(kCell * kPitch);
    const Shared<T> k = pool.take<T>(kCell * kPitch);
    const Shared<float> a = pool.take<float>(kCell * kSquare);
    const Rows rows{pool.take<float>(kCell), pool.take<float>(kCell), pool.take<float>(kCell),
                    pool.take<double>(kCell)};
    copy_tile<kThreads, kWords>(in.q, head / in.heads_per_key, 0, cell, q, kPitch);
    copy_tile<kThreads, kWords>(in.k, head / in.heads_per_key, 0, cell, k, kPitch);
    commit_copies();
    if (thread_idx() < kMmaWave) gates(cell, head, rows);
    wait_copies<0>();
    block_sync();
    norms(q, k, rows);
    block_sync();
    products(q, k, rows, a, out.p);
    block_sync();
    const Shared<float> t{reinterpret_cast<float*>(q.data)};
    const Shared<float> y{reinterpret_cast<float*>(k.data)};
    if (thread_idx() < kCell)
      invert_half(a, t);
    else
      write_scales(rows, out.scales);
    block_sync();
    multiply<false>(a + kHalf * kSquare, t, y);  // A21 T11
    block_sync();
    multiply<true>(t + (kHalf * kSquare + kHalf), y, t + kHalf * kSquare);  // -T22 A21 T11
    block_sync();
    write_t(t, rows.beta, out.t);
  }

  // Lane l: tokens 2 l and 2 l + 1.
  DEVICE_FN void gates(const Cell& cell, int head, const Rows& rows) const {
    const int lane = thread_idx();
    double g[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool inside = 2 * lane + e < cell.num_rows;
      const int64_t row = cell.first_row + 2 * lane + e;
      g[e] = inside ? static_cast<double>(in.log_decay(row, head)) : 0.0;
      rows.beta.put(2 * lane + e, inside ? in.beta(row, head) : 0.0f);
    }
    double sum = g[0] + g[1];
#pragma unroll
    for (int step = 1; step < kMmaWave; step *= 2) {
      const double before = shuffle(sum, lane >= step ? lane - step : lane, kMmaWave);
      if (lane >= step) sum += before;
    }
    const double before = shuffle(sum, lane > 0 ? lane - 1 : 0, kMmaWave);
    g[0] += lane > 0 ? before : 0.0;
    rows.g.put(2 * lane, g[0]);
    rows.g.put(2 * lane + 1, sum);
  }

  // Two threads a row.
  DEVICE_FN void norms(Shared<T> q, Shared<T> k, const Rows& rows) const {
    const int row = thread_idx() / 2;
    const int at = row * kPitch + thread_idx() % 2 * (kDim / 2);
    float q_squares = 0.0f, k_squares = 0.0f;
#pragma unroll
    for (int w = 0; w < kWords / 2; ++w) {
      const Vec<T, kVec<T>> q_word = q.load<kVec<T>>(at + w * kVec<T>);
      const Vec<T, kVec<T>> k_word = k.load<kVec<T>>(at + w * kVec<T>);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
        q_squares += to_float(q_word.v[e]) * to_float(q_word.v[e]);
        k_squares += to_float(k_word.v[e]) * to_float(k_word.v[e]);
      }
    }
    q_squares = group_sum<2>(q_squares);
    k_squares = group_sum<2>(k_squares);
    if (thread_idx() % 2 != 0) return;
    rows.q_scale.put(row, 1.0f / sqrtf(q_squares + 1e-6f) / sqrtf(static_cast<float>(kDim)));
    rows.k_scale.put(row, 1.0f / sqrtf(k_squares + 1e-6f));
  }

  // Wave w: rows 16 w .. 16 w + 15 of A, to shared memory, and of P.
  DEVICE_FN void products(Shared<T> q, Shared<T> k, const Rows& rows, Shared<float> a,
                          Global<Words4> p) const {
    const int wave = thread_idx() / kMmaWave;
    FragmentC kk[2 * kTiles] = {}, qk[2 * kTiles] = {};
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      const FragmentA k_rows = load_a(k + wave * 16 * kPitch + d, kPitch);
      const FragmentA q_rows = load_a(q + wave * 16 * kPitch + d, kPitch);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (n > wave) continue;
        FragmentB first, second;
        load_b_rows(k + n * 16 * kPitch + d, kPitch, first, second);
        multiply_add<T>(kk[2 * n], k_rows, first);
        multiply_add<T>(kk[2 * n + 1], k_rows, second);
        multiply_add<T>(qk[2 * n], q_rows, first);
        multiply_add<T>(qk[2 * n + 1], q_rows, second);
      }
    }
    const int g = thread_idx() % kMmaWave / 4, t = thread_idx() % 4;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n > wave) continue;
      Words4 high, low;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // right half: i / 2... rows g + 8: i >= 2
        const int row = wave * 16 + g + i / 2 * 8;
        const int col = n * 16 + i % 2 * 8 + 2 * t;
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = i / 2 * 2 + e;
          const float decay =
              row >= col + e ? expf(static_cast<float>(rows.g.get(row) - rows.g.get(col + e))) : 0.0f;
          const float factor = decay * rows.k_scale.get(col + e);
          pair[e] = qk[2 * n + i % 2].v[at] * rows.q_scale.get(row) * factor;
          a.put(row * kSquare + col + e,
                row > col + e ? kk[2 * n + i % 2].v[at] * rows.beta.get(row) * rows.k_scale.get(row) * factor
                              : 0.0f);
        }
        const SplitPair parts = split_pair(pair[0], pair[1]);
        high.v[i] = parts.high;
        low.v[i] = parts.low;
      }
      p.put(triangle_word(wave, n, 0), high);
      p.put(triangle_word(wave, n, 1), low);
    }
  }

  // Thread: a column of one of the two 32 x 32 squares on the diagonal of (I + A)^-1, from the top row down.
  DEVICE_FN void invert_half(Shared<float> a, Shared<float> t) const {
    const int column = thread_idx() % kHalf;
    const int corner = thread_idx() / kHalf * kHalf * (kSquare + 1);
    float x[kHalf] = {};
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      float sums[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < i; j += 4) {  // a is zero from its diagonal on, and so is x
        const Vec<float, 4> factors = a.load<4>(corner + i * kSquare + j);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e] -= factors.v[e] * x[j + e];
      }
      x[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      t.put(corner + i * kSquare + column, x[i]);
    }
  }

  // out = +-left right, squares of 32 x 32. Thread: rows y and y + 16, four columns.
  template <bool kNegative>
  DEVICE_FN void multiply(Shared<float> left, Shared<float> right, Shared<float> out) const {
    const int y = thread_idx() / 8;
    const int x = thread_idx() % 8 * 4;
    float sums[2][4] = {};
#pragma unroll
    for (int j = 0; j < kHalf; j += 4) {
      const Vec<float, 4> factors[2] = {left.load<4>(y * kSquare + j), left.load<4>((y + 16) * kSquare + j)};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Vec<float, 4> row = right.load<4>((j + e) * kSquare + x);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums[0][c] += factors[0].v[e] * row.v[c];
          sums[1][c] += factors[1].v[e] * row.v[c];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Vec<float, 4> row;
#pragma unroll
      for (int c = 0; c < 4; ++c) row.v[c] = kNegative ? -sums[i][c] : sums[i][c];
      out.store<4>((y + 16 * i) * kSquare + x, row);
    }
  }

  DEVICE_FN void write_scales(const Rows& rows, Global<float> scales) const {
    const int i = thread_idx() - kCell;
    const double g = rows.g.get(i), last = rows.g.get(kCell - 1);
    const float from_start = expf(static_cast<float>(g));
    scales.put(Workspace::kOfKeys * kCell + i, from_start * rows.k_scale.get(i));
    scales.put(Workspace::kOfQueries * kCell + i, from_start * rows.q_scale.get(i));
    scales.put(Workspace::kOfValues * kCell + i, expf(static_cast<float>(last - g)) * rows.k_scale.get(i));
    scales.put(Workspace::kOfState * kCell + i, expf(static_cast<float>(last)));
  }

  DEVICE_FN void write_t(Shared<float> t, Shared<float> beta, Global<Words4> out) const {
    const int lane = thread_idx() % kMmaWave;
#pragma unroll
    for (int row_tile = 0; row_tile < kTiles; ++row_tile)
#pragma unroll
      for (int col_tile = 0; col_tile <= row_tile; ++col_tile) {
        if ((row_tile * (row_tile + 1) / 2 + col_tile) % (kThreads / kMmaWave) != thread_idx() / kMmaWave)
          continue;
        Words4 high, low;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = row_tile * 16 + lane / 4 + i / 2 * 8;
          const int col = col_tile * 16 + i % 2 * 8 + lane % 4 * 2;
          float pair[2];
#pragma unroll
          for (int e = 0; e < 2; ++e)
            pair[e] = row >= col + e ? t.get(row * kSquare + col + e) * beta.get(col + e) : 0.0f;
          const SplitPair parts = split_pair(pair[0], pair[1]);
          high.v[i] = parts.high;
          low.v[i] = parts.low;
        }
        out.put(triangle_word(row_tile, col_tile, 0), high);
        out.put(triangle_word(row_tile, col_tile, 1), low);
      }
  }
};

}  // namespace

void make_cells(const Context& context, const GdnInputs<T>& in, const Batch& batch) {
  launch(context.device,
         {.name = "gdn_mma_cells",
          .grid = {batch.count, in.state.num_v_heads},
          .shared_bytes = CellKernel::kSharedBytes},
         CellKernel{in, batch.cells, batch.workspace, batch.first});
}

}  // namespace longspan::ops::device::gdn
