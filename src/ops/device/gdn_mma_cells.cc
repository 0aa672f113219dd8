#include "ops/device/gdn_mma.h"

namespace longspan::ops::device::gdn {
namespace {

// Block (cell, value head): T, P and the factors of rows. Four waves have 16 rows of K K^T each, four of
// Q K^T; meanwhile two more sum up decays. All but those then invert.
struct CellKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kWaves = 2 * kTiles;  // that multiply
  static constexpr int kMultiplying = kWaves * kMmaWave;
  static constexpr int kThreads = kMultiplying + 2 * kMmaWave;
  static constexpr int kSquare = kCell + 4;  // pitch of fp32 squares; one takes the room of a tile
  static constexpr int kQuarter = kCell / 4;
  static_assert(kSquare * sizeof(float) == kPitch * sizeof(T));
  static constexpr size_t kSharedBytes =
      2 * shared_bytes<T>(kCell * kPitch) + shared_bytes<float>(4 * kCell) + 3 * shared_bytes<float>(kCell);
  GdnInputs<T> in;
  CellTable cells;
  Workspace workspace;
  int first_cell;

  struct Rows {              // of one cell, in shared memory
    Shared<float> decays;    // [kCell, 2]: G / ln 2, of which differences are taken, as the sum of two
    Shared<float> k_scales;  // 1 / |k|
    Shared<float> q_scales;  // 1 / |q|, with kDim^-1/2
    Shared<float> beta;
  };

  DEVICE_FN void operator()() const {
    release_next();
    const Cell cell = cells.find(first_cell + block_idx().x);
    await_previous();
    if (cell.seq_idx < 0) return;
    const int head = block_idx().y;
    const Workspace out = workspace.of(block_idx().x, head);
    SharedPool pool;
    const Shared<T> q = pool.take<T>(kCell * kPitch);
    const Shared<T> k = pool.take<T>(kCell * kPitch);
    const Rows rows{pool.take<float>(4 * kCell), pool.take<float>(kCell), pool.take<float>(kCell),
                    pool.take<float>(kCell)};
    // A takes the place of Q, T that of K.
    const Shared<float> a{reinterpret_cast<float*>(q.data)};
    const Shared<float> t{reinterpret_cast<float*>(k.data)};
    if (wave() == kWaves) {
      write_decays(cell, head, rows.decays);
    } else if (wave() > kWaves) {
      write_strengths(cell, head, rows.beta);
    } else {
      copy_tile<kMultiplying, kWords>(in.q, head / in.heads_per_key, 0, cell, q, kPitch);
      copy_tile<kMultiplying, kWords>(in.k, head / in.heads_per_key, 0, cell, k, kPitch);
      commit_copies();
      wait_copies<0>();
      meet();
      if (wave() < kTiles)
        make_a(k, rows, a);
      else
        make_p(q, k, rows, out.p);
    }
    block_sync();
    if (thread_idx() < kCell)
      invert_quarter(a, t);
    else if (wave() >= kWaves)
      write_scales(rows, out.scales);
    block_sync();
    invert_rest<kQuarter>(a, t);
    invert_rest<kHalfCell>(a, t);
    if (wave() < kWaves) write_t(t, rows.beta, out.t);
  }

  static DEVICE_FN int wave() { return thread_idx() / kMmaWave; }

  // When the tiles are there, and when the factors of rows are.
  static DEVICE_FN void meet() { block_sync_branches(kThreads); }

  // Lane l: tokens 2 l and 2 l + 1. G: sums of log decays. Differences of large ones cancel, hence double,
  // and two floats: a difference of the first ones is exact where they are close.
  DEVICE_FN void write_decays(const Cell& cell, int head, Shared<float> to) const {
    const int lane = thread_idx() % kMmaWave;
    double g[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool inside = 2 * lane + e < cell.num_rows;
      g[e] = inside ? static_cast<double>(in.log_decay(cell.first_row + 2 * lane + e, head)) : 0.0;
    }
    meet();
    double sum = g[0] + g[1];
#pragma unroll
    for (int step = 1; step < kMmaWave; step *= 2) {
      const double before = shuffle(sum, lane >= step ? lane - step : lane, kMmaWave);
      if (lane >= step) sum += before;
    }
    const double before = shuffle(sum, lane > 0 ? lane - 1 : 0, kMmaWave);
    g[0] += lane > 0 ? before : 0.0;
    g[1] = sum;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const double log2 = g[e] * 1.4426950408889634;
      const float high = static_cast<float>(log2);
      to.store<2>(2 * (2 * lane + e), {{high, static_cast<float>(log2 - static_cast<double>(high))}});
    }
    meet();
  }
  DEVICE_FN void write_strengths(const Cell& cell, int head, Shared<float> to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * kMmaWave + thread_idx() % kMmaWave;
      to.put(row, row < cell.num_rows ? in.beta(cell.first_row + row, head) : 0.0f);
    }
    meet();
    meet();
  }

  // 16 rows of a product with transposed rows, up to the diagonal.
  using Tiles = FragmentC[2 * kTiles];
  static DEVICE_FN void multiply_tiles(Shared<T> left, Shared<T> right, int row_tile, Tiles& out,
                                       FragmentC (&squares)[2]) {
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      const FragmentA a = load_a(left + row_tile * 16 * kPitch + d, kPitch);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (n > row_tile) continue;
        FragmentB first, second;
        load_b_rows(right + n * 16 * kPitch + d, kPitch, first, second);
        multiply_add<T>(out[2 * n], a, first);
        multiply_add<T>(out[2 * n + 1], a, second);
      }
      FragmentB first, second;
      load_b_rows(left + row_tile * 16 * kPitch + d, kPitch, first, second);
      multiply_add<T>(squares[0], a, first);
      multiply_add<T>(squares[1], a, second);
    }
  }
  // 1 / root of what lies on the diagonal of a tile.
  static DEVICE_FN void write_norms(const FragmentC (&squares)[2], int row_tile, float factor,
                                    Shared<float> to) {
    const int g = thread_idx() % kMmaWave / 4;
    if (thread_idx() % 4 != g / 2) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float square = g % 2 == 0 ? squares[half].v[2 * half] : squares[half].v[2 * half + 1];
      to.put(row_tile * 16 + half * 8 + g, factor / sqrtf(square + 1e-6f));
    }
  }

  DEVICE_FN void make_a(Shared<T> k, const Rows& rows, Shared<float> a) const {
    Tiles kk = {};
    FragmentC squares[2] = {};
    multiply_tiles(k, k, wave(), kk, squares);
    write_norms(squares, wave(), 1.0f, rows.k_scales);
    meet();
    const auto factor = [&](int row) { return rows.k_scales.get(row) * rows.beta.get(row); };
    for_pairs(wave(), rows, factor, kk, [&](int row, int col, int, int, float left, float right) {
      a.store<2>(row * kSquare + col, {{row > col ? left : 0.0f, row > col + 1 ? right : 0.0f}});
    });
  }
  DEVICE_FN void make_p(Shared<T> q, Shared<T> k, const Rows& rows, Global<Words4> p) const {
    const int row_tile = wave() - kTiles;
    Tiles qk = {};
    FragmentC squares[2] = {};
    multiply_tiles(q, k, row_tile, qk, squares);
    write_norms(squares, row_tile, 0.08838834764831845f, rows.q_scales);
    meet();
    SplitPair pairs[4];
    const auto factor = [&](int row) { return rows.q_scales.get(row); };
    for_pairs(row_tile, rows, factor, qk, [&](int row, int col, int n, int i, float left, float right) {
      pairs[i] = split_pair(row >= col ? left : 0.0f, row > col ? right : 0.0f);
      if (i == 3) put_tile(p, row_tile, n, pairs);
    });
    if (row_tile % 2 != 0) return;
    for (SplitPair& pair : pairs) pair = {0, 0};
    put_tile(p, row_tile, row_tile + 1, pairs);
  }
  // Of pairs of columns of the products: entries times the row's factor, the column's |k|^-1 and the decay
  // between them.
  template <class Factor, class Fn>
  static DEVICE_FN void for_pairs(int row_tile, const Rows& rows, const Factor& factor, const Tiles& products,
                                  const Fn& fn) {
    const int g = thread_idx() % kMmaWave / 4, t = thread_idx() % 4;
    const int first_row = row_tile * 16 + g;
    const float factors[2] = {factor(first_row), factor(first_row + 8)};
    const Vec<float, 2> row_decays[2] = {rows.decays.load<2>(2 * first_row),
                                         rows.decays.load<2>(2 * (first_row + 8))};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n > row_tile) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // right half: i % 2, rows g + 8: i / 2
        const int row = first_row + i / 2 * 8;
        const int col = n * 16 + i % 2 * 8 + 2 * t;
        const Vec<float, 4> col_decays = rows.decays.load<4>(2 * col);
        const Vec<float, 2> col_scales = rows.k_scales.load<2>(col);
        const FragmentC& product = products[2 * n + i % 2];
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float difference = (row_decays[i / 2].v[0] - col_decays.v[2 * e]) +
                                   (row_decays[i / 2].v[1] - col_decays.v[2 * e + 1]);
          pair[e] = product.v[i / 2 * 2 + e] * factors[i / 2] * (exp2_approx(difference) * col_scales.v[e]);
        }
        fn(row, col, n, i, pair[0], pair[1]);
      }
    }
  }

  // Thread: a column of one of the four 16 x 16 squares on the diagonal of (I + A)^-1, from the top row down,
  // and zeros beside it that belong to a square of 32 x 32.
  DEVICE_FN void invert_quarter(Shared<float> a, Shared<float> t) const {
    const int column = thread_idx() % kQuarter;
    const int corner = thread_idx() / kQuarter * kQuarter * (kSquare + 1);
    float x[kQuarter] = {};
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) {
      float sums[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < i; j += 4) {  // a is zero from its diagonal on, and so is x
        const Vec<float, 4> factors = a.load<4>(corner + i * kSquare + j);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e] -= factors.v[e] * x[j + e];
      }
      x[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      t.put(corner + i * kSquare + column, x[i]);
      if (thread_idx() / kQuarter % 2 == 0) t.put(corner + i * kSquare + kQuarter + column, 0.0f);
    }
  }

  // Of (I + A)^-1, whose squares of kSize on the diagonal are there, those below each second one:
  // -T22 A21 T11, by way of the room above the diagonal.
  template <int kSize>
  DEVICE_FN void invert_rest(Shared<float> a, Shared<float> t) const {
    constexpr int kBelow = kSize * kSquare;
    constexpr int kSquareWaves = kSize / 4;
    static_assert(kCell / kSize / 2 * kSquareWaves == kWaves);
    const int square = wave() / kSquareWaves;
    const int corner = square * 2 * kSize * (kSquare + 1);
    const int first = wave() % kSquareWaves * 4;
    const Shared<float> room = t + (kHalfCell + square * kSize);
    if (wave() < kWaves) multiply_columns<kSize>(first, a + (corner + kBelow), t + corner, room);
    block_sync();
    if (wave() < kWaves)
      multiply_rows<kSize>(first, t + (corner + kBelow + kSize), room, t + (corner + kBelow));
    block_sync();
  }
  // out = left right, of four columns from `first` on; right is a lower triangle. Lane: some of them of a
  // row.
  template <int kSize>
  static DEVICE_FN void multiply_columns(int first, Shared<float> left, Shared<float> right,
                                         Shared<float> out) {
    constexpr int kCount = 4 * kSize / kMmaWave;  // of a lane
    const int y = thread_idx() % kMmaWave % kSize;
    const int x = first + thread_idx() % kMmaWave / kSize * kCount;
    Vec<float, kCount> sums = {};
#pragma unroll
    for (int j = 0; j < kSize; j += 4) {
      if (j < first) continue;
      const Vec<float, 4> factors = left.load<4>(y * kSquare + j);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Vec<float, kCount> row = right.load<kCount>((j + e) * kSquare + x);
#pragma unroll
        for (int c = 0; c < kCount; ++c) sums.v[c] += factors.v[e] * row.v[c];
      }
    }
    out.store<kCount>(y * kSquare + x, sums);
  }
  // out = -left right, of four rows from `first` on; left is a lower triangle. Lane: a column of some of
  // them.
  template <int kSize>
  static DEVICE_FN void multiply_rows(int first, Shared<float> left, Shared<float> right, Shared<float> out) {
    constexpr int kCount = 4 * kSize / kMmaWave;  // of a lane
    const int x = thread_idx() % kMmaWave % kSize;
    const int y = first + thread_idx() % kMmaWave / kSize * kCount;
    float sums[kCount] = {};
#pragma unroll
    for (int j = 0; j < kSize; j += 4) {
      if (j > first) continue;
      float column[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) column[e] = right.get((j + e) * kSquare + x);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const Vec<float, 4> factors = left.load<4>((y + c) * kSquare + j);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[c] -= factors.v[e] * column[e];
      }
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) out.put((y + c) * kSquare + x, sums[c]);
  }

  DEVICE_FN void write_scales(const Rows& rows, Global<float> scales) const {
    const int i = thread_idx() - kMultiplying;
    const Vec<float, 2> g = rows.decays.load<2>(2 * i), last = rows.decays.load<2>(2 * (kCell - 1));
    const float from_start = exp2_approx(g.v[0]) * (1.0f + g.v[1] * 0.693147181f);
    scales.put(Workspace::kOfKeys * kCell + i, from_start * rows.k_scales.get(i));
    scales.put(Workspace::kOfQueries * kCell + i, from_start * rows.q_scales.get(i));
    scales.put(Workspace::kOfValues * kCell + i,
               exp2_approx((last.v[0] - g.v[0]) + (last.v[1] - g.v[1])) * rows.k_scales.get(i));
    scales.put(Workspace::kOfState * kCell + i, exp2_approx(last.v[0]) * (1.0f + last.v[1] * 0.693147181f));
  }

  DEVICE_FN void write_t(Shared<float> t, Shared<float> beta, Global<Words4> out) const {
    constexpr int kUpperTiles = 4;  // of rows 0 .. 31
    constexpr int kTileWords = 16 * 16 / kVec<T>;
    const int lane = thread_idx() % kMmaWave;
#pragma unroll 1
    for (int tile = wave(); tile < kPartWords / kTileWords; tile += kWaves) {
      const bool upper = tile < kUpperTiles;
      const int row_tile = upper ? tile / 2 : 2 + (tile - kUpperTiles) / kTiles;
      const int col_tile = upper ? tile % 2 : tile % kTiles;
      const int first_row = row_tile * 16 + lane / 4;
      const int first_col = col_tile * 16 + lane % 4 * 2;
      SplitPair pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + i / 2 * 8;
        const int col = first_col + i % 2 * 8;
        const Vec<float, 2> pair = t.load<2>(row * kSquare + col);
        const Vec<float, 2> factors = beta.load<2>(col);
        pairs[i] = split_pair(row >= col ? pair.v[0] * factors.v[0] : 0.0f,
                              row > col ? pair.v[1] * factors.v[1] : 0.0f);
      }
      put_tile(out, row_tile, col_tile, pairs);
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
