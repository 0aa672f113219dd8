// Prompt chunks of the gated delta rule on matrix units: bf16, heads of 128 x 128, rows in whole 16-byte
// words. The plain form (gdn_prefill.cc) takes what this one does not.
//
// Raw q and k stay one side of every product of theirs, exact; norms, gates and decays are factors of fp32
// rows:
//   R = V - e^G |k|^-1 K S;   V' = T R;   O = e^G |q|^-1 Q S + P V';
//   S <- e^G_last S + K^T (e^(G_last - G) |k|^-1 V')
// with T = (I + A)^-1 diag(beta), A = beta (K K^T) . D below the diagonal, P = (Q K^T) . D on and below it
// (MODEL 2.8). S, R, V', T and P go in as two bf16 parts, 16 bits of mantissa; of two such sides the product
// of the low parts is left out. One kernel makes T and P of all cells at once, one goes from cell to cell
// with S, one norms and gates.
#include <algorithm>

#include "ops/device/gdn.h"
#include "ops/device/gdn_cells.h"
#include "ops/device/mma.h"

namespace longspan::ops::device {
namespace {

using T = bf16_t;

constexpr int kDim = 128;         // k_dim and v_dim
constexpr int kPitch = kDim + 8;  // of tiles: neighbouring rows four banks apart
constexpr int kWords = kDim / kVec<T>;
constexpr int kCellsAtOnce = 32;  // bounds the workspace, which the second-level cache should hold
constexpr int kTiles = kCell / 16;
constexpr int kTriangle = kTiles * (kTiles + 1) / 2;  // 16 x 16 tiles on and below the diagonal

// A lower triangle of 16 x 16 tiles in two parts, each as the fragments that load_b_rows would make of it:
// tile, part, lane.
constexpr int kTriangleWords = kTriangle * 2 * kMmaWave;
using Words4 = Vec<uint32_t, 4>;

DEVICE_FN int triangle_word(int row_tile, int col_tile, int part) {
  return ((row_tile * (row_tile + 1) / 2 + col_tile) * 2 + part) * kMmaWave + thread_idx() % kMmaWave;
}

// A pair of floats as high and low parts.
struct SplitPair {
  uint32_t high, low;
};
DEVICE_FN SplitPair split_pair(float a, float b) {
  const uint32_t high = pack_pair<T>(a, b);
  const float high_a = bfloat_to_float(static_cast<uint16_t>(high & 0xffffu));
  const float high_b = bfloat_to_float(static_cast<uint16_t>(high >> 16));
  return {high, pack_pair<T>(a - high_a, b - high_b)};
}

struct SplitA {
  FragmentA high, low;
};
// Two C fragments side by side are one A fragment.
DEVICE_FN SplitA split(const FragmentC& left, const FragmentC& right) {
  const SplitPair pairs[4] = {split_pair(left.v[0], left.v[1]), split_pair(left.v[2], left.v[3]),
                              split_pair(right.v[0], right.v[1]), split_pair(right.v[2], right.v[3])};
  SplitA a;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a.high.v[i] = pairs[i].high;
    a.low.v[i] = pairs[i].low;
  }
  return a;
}

// What the kernels leave each other, per cell and value head.
struct Workspace {
  Global<Words4> t, p;   // [kTriangleWords]
  Global<float> scales;  // [kScales]
  Global<float> o;       // [kCell, kDim]
  int num_heads;

  // Rows of `scales`, kCell floats each; the last is e^G_last alone.
  static constexpr int kOfKeys = 0;     // e^G |k|^-1
  static constexpr int kOfQueries = 1;  // e^G |q|^-1 kDim^-1/2
  static constexpr int kOfValues = 2;   // e^(G_last - G) |k|^-1
  static constexpr int kOfState = 3;
  static constexpr int kScales = 4 * kCell;
  static constexpr size_t kBytes =
      2 * kTriangleWords * sizeof(Words4) + (kScales + kCell * kDim) * sizeof(float);

  DEVICE_FN Workspace of(int cell, int head) const {
    const int64_t i = static_cast<int64_t>(cell) * num_heads + head;
    return {t + i * kTriangleWords, p + i * kTriangleWords, scales + i * kScales, o + i * kCell * kDim,
            num_heads};
  }
};

// Rows [0, num_rows) of `from`, `words` 16-byte words each, then zeros up to kCell.
template <int kThreads, int kRowWords>
DEVICE_FN void copy_tile(Heads<T> from, int head, int column, const Cell& cell, Shared<T> to, int pitch) {
#pragma unroll 4
  for (int i = thread_idx(); i < kCell * kRowWords; i += kThreads) {
    const int row = i / kRowWords;
    const int word = i % kRowWords * kVec<T>;
    const bool inside = row < cell.num_rows;
    const Global<T> source = from.row(cell.first_row + (inside ? row : 0), head) + (column + word);
    copy_async(to.data + row * pitch + word, source.data, inside);
  }
}

// Block (cell, value head): T, P and the factors of rows.
struct CellKernel {
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

// Block (64 columns of v_dim, value head, sequence): the batch's cells of that sequence in order, the next
// one on its way while one is worked on. A wave owns 16 columns of S and works on transposes: S^T [16,
// k_dim], R^T, V'^T, O^T [16, tokens] are C fragments in registers, and become the A fragments of the next
// product there; K, Q, T and P are the right sides. No wave waits for another's results.
struct ScanKernel {
  static constexpr int kThreads = 128;
  static constexpr int kColumns = 16 * (kThreads / kMmaWave);
  static constexpr int kValuePitch = kColumns + 8;
  static constexpr size_t kStageBytes =
      2 * shared_bytes<T>(kCell * kPitch) + shared_bytes<T>(kCell * kValuePitch) +
      2 * shared_bytes<Words4>(kTriangleWords) + shared_bytes<float>(Workspace::kScales);
  static constexpr size_t kSharedBytes = 2 * kStageBytes;
  GdnInputs<T> in;
  CellTable cells;
  Workspace workspace;
  Global<StateCheckpoint> checkpoints;
  int num_checkpoints;
  int first_cell;
  int num_cells;

  struct Stage {     // one cell in shared memory
    Shared<T> k, q;  // [kCell, kPitch]
    Shared<T> v;     // [kCell, kValuePitch]: this block's columns
    Shared<Words4> t, p;
    Shared<float> scales;
  };
  using State = FragmentC[kDim / 8];
  using Tokens = FragmentC[kCell / 8];

  DEVICE_FN void operator()() const {
    const int head = block_idx().y;
    const int seq_idx = cells.first_seq + block_idx().z;
    const CellRow row = cells.row(seq_idx);
    const int begin = first_cell > row.first ? first_cell - row.first : 0;
    const int batch_end = first_cell + num_cells - row.first;
    const int end = batch_end < row.count ? batch_end : row.count;
    if (begin >= end) return;
    SharedPool pool;
    const Shared<Words4> stages = pool.take<Words4>(kSharedBytes / sizeof(Words4));
    const Global<float> own = in.state.s(in.pages.get(seq_idx), head);
    load(row, begin, head, stage(stages, false));
    commit_copies();
    State s;
    load_state(own, row.cell(begin).position == 0, s);
    for (int i = begin; i < end; ++i) {
      const bool odd = (i - begin) % 2 != 0;
      if (i + 1 < end) load(row, i + 1, head, stage(stages, !odd));
      commit_copies();
      wait_copies<1>();
      block_sync();
      step(stage(stages, odd), workspace.of(row.first + i - first_cell, head).o, s);
      save(row.cell(i), head, s);
      block_sync();
    }
    store_state(own, s);
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
    const Workspace from = workspace.of(row.first + i - first_cell, head);
    copy_tile<kThreads, kWords>(in.k, head / in.heads_per_key, 0, cell, to.k, kPitch);
    copy_tile<kThreads, kWords>(in.q, head / in.heads_per_key, 0, cell, to.q, kPitch);
    copy_tile<kThreads, kColumns / kVec<T>>(in.v, head, block_idx().x * kColumns, cell, to.v, kValuePitch);
#pragma unroll 5
    for (int w = thread_idx(); w < kTriangleWords; w += kThreads) {
      copy_async(to.t.data + w, (from.t + w).data, true);
      copy_async(to.p.data + w, (from.p + w).data, true);
    }
    if (thread_idx() < Workspace::kScales / 4)
      copy_async(to.scales.data + 4 * thread_idx(), (from.scales + 4 * thread_idx()).data, true);
  }

  // The lane's columns are column() and column() + 8 of v_dim.
  DEVICE_FN int column() const {
    return block_idx().x * kColumns + thread_idx() / kMmaWave * 16 + thread_idx() % kMmaWave / 4;
  }
  static DEVICE_FN int pair() { return thread_idx() % 4 * 2; }

  DEVICE_FN void load_state(Global<float> from, bool fresh, State& s) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n].v[i] = fresh ? 0.0f : from.get((8 * n + pair() + i % 2) * kDim + column() + i / 2 * 8);
  }
  DEVICE_FN void store_state(Global<float> to, const State& s) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) to.put((8 * n + pair() + i % 2) * kDim + column() + i / 2 * 8, s[n].v[i]);
  }

  DEVICE_FN void step(const Stage& stage, Global<float> out, State& s) const {
    Tokens rest = {}, o = {};
    multiply_state(stage, s, rest, o);
    finish_rest(stage, rest);
    scale(stage, Workspace::kOfQueries, o);
    Tokens v = {};
    multiply_triangle(stage.t, rest, v);
    multiply_triangle(stage.p, v, o);
    scale(stage, Workspace::kOfValues, v);
    add_keys(stage, v, s);
#pragma unroll
    for (int n = 0; n < kCell / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out.put((8 * n + pair() + i % 2) * kDim + column() + i / 2 * 8, o[n].v[i]);
  }

  // k_s = S^T K^T, q_s = S^T Q^T
  DEVICE_FN void multiply_state(const Stage& stage, const State& s, Tokens& k_s, Tokens& q_s) const {
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      const SplitA a = split(s[2 * d], s[2 * d + 1]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        FragmentB k[2], q[2];
        load_b_rows(stage.k + n * 16 * kPitch + d * 16, kPitch, k[0], k[1]);
        load_b_rows(stage.q + n * 16 * kPitch + d * 16, kPitch, q[0], q[1]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_add<T>(k_s[2 * n + half], a.high, k[half]);
          multiply_add<T>(q_s[2 * n + half], a.high, q[half]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_add<T>(k_s[2 * n + half], a.low, k[half]);
          multiply_add<T>(q_s[2 * n + half], a.low, q[half]);
        }
      }
    }
  }

  // R^T of K S.
  DEVICE_FN void finish_rest(const Stage& stage, Tokens& rest) const {
    const int lane = thread_idx() % kMmaWave;
    const Shared<T> v = stage.v + thread_idx() / kMmaWave * 16;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t pairs[4];  // tokens 0-7 of columns 0-7 and 8-15, tokens 8-15
      load_matrices_transposed(pairs,
                               v.data + (n * 16 + lane / 16 * 8 + lane % 8) * kValuePitch + lane / 8 % 2 * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Vec<float, 2> factor =
            stage.scales.load<2>(Workspace::kOfKeys * kCell + n * 16 + half * 8 + pair());
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t word = pairs[2 * half + i / 2];
          const float value =
              bfloat_to_float(static_cast<uint16_t>(i % 2 == 0 ? word & 0xffffu : word >> 16));
          float& r = rest[2 * n + half].v[i];
          r = value - factor.v[i % 2] * r;
        }
      }
    }
  }

  DEVICE_FN void scale(const Stage& stage, int which, Tokens& x) const {
#pragma unroll
    for (int n = 0; n < kCell / 8; ++n) {
      const Vec<float, 2> factor = stage.scales.load<2>(which * kCell + n * 8 + pair());
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n].v[i] *= factor.v[i % 2];
    }
  }

  // out += x triangle^T
  DEVICE_FN void multiply_triangle(Shared<Words4> triangle, const Tokens& x, Tokens& out) const {
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      const SplitA a = split(x[2 * d], x[2 * d + 1]);
#pragma unroll
      for (int n = d; n < kTiles; ++n) {
        const Words4 high = triangle.get(triangle_word(n, d, 0));
        const Words4 low = triangle.get(triangle_word(n, d, 1));
        const FragmentB highs[2] = {{{high.v[0], high.v[1]}}, {{high.v[2], high.v[3]}}};
        const FragmentB lows[2] = {{{low.v[0], low.v[1]}}, {{low.v[2], low.v[3]}}};
#pragma unroll
        for (int half = 0; half < 2; ++half) multiply_add<T>(out[2 * n + half], a.high, highs[half]);
#pragma unroll
        for (int half = 0; half < 2; ++half) multiply_add<T>(out[2 * n + half], a.low, highs[half]);
#pragma unroll
        for (int half = 0; half < 2; ++half) multiply_add<T>(out[2 * n + half], a.high, lows[half]);
      }
    }
  }

  // S^T <- e^G_last S^T + v K
  DEVICE_FN void add_keys(const Stage& stage, const Tokens& v, State& s) const {
    const float decay = stage.scales.get(Workspace::kOfState * kCell);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n].v[i] *= decay;
#pragma unroll
    for (int d = 0; d < kTiles; ++d) {
      const SplitA a = split(v[2 * d], v[2 * d + 1]);
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        FragmentB k[2];
        load_b(stage.k + d * 16 * kPitch + n * 16, kPitch, k[0], k[1]);
#pragma unroll
        for (int half = 0; half < 2; ++half) multiply_add<T>(s[2 * n + half], a.high, k[half]);
#pragma unroll
        for (int half = 0; half < 2; ++half) multiply_add<T>(s[2 * n + half], a.low, k[half]);
      }
    }
  }

  DEVICE_FN void save(const Cell& cell, int head, const State& s) const {
    for (int i = 0; i < num_checkpoints; ++i) {
      const Global<int32_t> item{reinterpret_cast<int32_t*>(checkpoints.data + i)};
      if (item.get(0) == cell.seq_idx && item.get(1) == cell.position + cell.num_rows)
        store_state(in.state.s(item.get(2), head), s);
    }
  }
};

// Block (cell, value head): 16 lanes a token, a word each.
struct OutputKernel {
  static constexpr int kThreads = 128;
  CellTable cells;
  Workspace workspace;
  GatedNorm<T> norm;
  int first_cell;

  DEVICE_FN void operator()() const {
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
        word.v[e] = from_float<T>(o[e / 4].v[e % 4] * scale * weights[e / 4].v[e % 4] *
                                  (gate / (1.0f + expf(-gate))));
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
  return info.wave == kMmaWave && info.shared_bytes >= ScanKernel::kSharedBytes &&
         args.q.dtype == DType::kBF16 && args.state.k_dim == kDim && args.state.v_dim == kDim &&
         takes_words(args.q) && takes_words(args.k) && takes_words(args.v) && takes_words(args.z) &&
         takes_words(args.out) && takes_words(args.norm);
}

}  // namespace

bool gdn_mma(const Context& context, const GatedDelta& args) {
  if (!fits_matrix_units(context, args)) return false;
  const int first_seq = static_cast<int>(args.seqs.num_decode_seqs);
  const int num_seqs = static_cast<int>(args.seqs.num_seqs) - first_seq;
  const int num_heads = static_cast<int>(args.state.num_v_heads);
  const int num_cells = max_cells(args.q.dim(0) - first_seq, num_seqs);
  const Workspace workspace = make_workspace(context, std::min(num_cells, kCellsAtOnce), num_heads);
  const CellTable cells{seq_table(args.seqs), first_seq, first_seq + num_seqs};
  const GdnInputs<T> in = gdn_inputs<T>(args);
  const Global<StateCheckpoint> checkpoints = upload_checkpoints(context, args.checkpoints);
  for (int first = 0; first < num_cells; first += kCellsAtOnce) {
    const int count = std::min(kCellsAtOnce, num_cells - first);
    launch(context.device,
           {.name = "gdn_mma_cells", .grid = {count, num_heads}, .shared_bytes = CellKernel::kSharedBytes},
           CellKernel{in, cells, workspace, first});
    launch(context.device,
           {.name = "gdn_mma_scan",
            .grid = {kDim / ScanKernel::kColumns, num_heads, num_seqs},
            .shared_bytes = ScanKernel::kSharedBytes},
           ScanKernel{.in = in,
                      .cells = cells,
                      .workspace = workspace,
                      .checkpoints = checkpoints,
                      .num_checkpoints = static_cast<int>(args.checkpoints.size()),
                      .first_cell = first,
                      .num_cells = count});
    launch(context.device, {.name = "gdn_mma_output", .grid = {count, num_heads}},
           OutputKernel{cells, workspace, gated_norm<T>(args), first});
  }
  return true;
}

}  // namespace longspan::ops::device
