// What the kernels of the gated delta rule on matrix units share. Raw q and k stay one side of every product
// of theirs, exact; norms, gates and decays are factors of fp32 rows:
//   R = V - e^G |k|^-1 K S;   V' = T R;   O = e^G |q|^-1 Q S + P V';
//   S <- e^G_last S + K^T (e^(G_last - G) |k|^-1 V')
// with T = (I + A)^-1 diag(beta), A = beta (K K^T) . D below the diagonal, P = (Q K^T) . D on and below it
// (MODEL 2.8). S, R, V', T and P go in as two bf16 parts, 16 bits of mantissa; of two such sides the product
// of the low parts is left out.
#pragma once

#include "ops/device/gdn.h"
#include "ops/device/gdn_cells.h"
#include "ops/device/mma.h"

namespace longspan::ops::device::gdn {

using T = bf16_t;

constexpr int kDim = 128;         // k_dim and v_dim
constexpr int kPitch = kDim + 8;  // of tiles: neighbouring rows four banks apart
constexpr int kWords = kDim / kVec<T>;
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

// Rows of a cell, kRowWords 16-byte words each from `column` on, and zeros up to kCell of them.
template <int kThreads, int kRowWords>
DEVICE_FN void copy_tile(Heads<T> from, int head, int column, const Cell& cell, Shared<T> to, int pitch) {
  constexpr int kRowsAtOnce = kThreads / kRowWords;
  static_assert(kThreads % kRowWords == 0 && kCell % kRowsAtOnce == 0);
  const int first = thread_idx() / kRowWords;
  const int word = thread_idx() % kRowWords * kVec<T>;
  const Global<T> source = from.row(cell.first_row, head) + (column + word);
  const Shared<T> target = to + (first * pitch + word);
#pragma unroll
  for (int row = 0; row < kCell; row += kRowsAtOnce) {
    const bool inside = first + row < cell.num_rows;
    copy_async((target + row * pitch).data, (source + (inside ? first + row : 0) * from.stride).data, inside);
  }
}

// A batch of cells, from number `first` on.
struct Batch {
  CellTable cells;
  int first;
  int count;
  int num_seqs;
  Workspace workspace;
  Global<StateCheckpoint> checkpoints;
  int num_checkpoints;
};

// T, P and scales of the batch's cells; gdn_mma_cells.cc.
void make_cells(const Context& context, const GdnInputs<T>& in, const Batch& batch);
// O of its cells, and the states after it; gdn_mma_scan.cc.
void scan_cells(const Context& context, const GdnInputs<T>& in, const Batch& batch);
extern const size_t kScanSharedBytes;

}  // namespace longspan::ops::device::gdn
