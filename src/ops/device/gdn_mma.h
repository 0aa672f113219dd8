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

// A lower triangle in two parts, in words of 8 columns of a row: of rows 0 .. 31 and columns 0 .. 31, then of
// rows 32 .. 63 and all columns, column of words by column. So blocks of 8 x 8 lie in one piece each.
constexpr int kHalfCell = kCell / 2;
constexpr int kPartWords = kHalfCell * (kHalfCell / 8 + kCell / 8);
constexpr int kTriangleWords = 2 * kPartWords;
using Words4 = Vec<uint32_t, 4>;

DEVICE_FN int triangle_word(int row, int word, int part) {
  return part * kPartWords + (row / kHalfCell * (kHalfCell / 8) + word) * kHalfCell + row % kHalfCell;
}
// The tiles of 16 x 16 of a row of them.
DEVICE_FN constexpr int triangle_tiles(int row_tile) { return row_tile / 2 * 2 + 2; }

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

// A 16 x 16 tile of a triangle, from a wave that holds it as C fragments are held: pairs of columns of its
// left and right half, rows g, then g + 8.
DEVICE_FN void put_tile(Global<Words4> triangle, int row_tile, int col_tile, const SplitPair (&pairs)[4]) {
  const int lane = thread_idx() % kMmaWave;
  const int first = 4 * triangle_word(row_tile * 16 + lane / 4, 0, 0) + lane % 4;
  const Global<uint32_t> to = Global<uint32_t>{reinterpret_cast<uint32_t*>(triangle.data)} + first;
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // from here on the compiler knows the distances
    const int word = (2 * col_tile + i % 2) * kHalfCell + i / 2 * 8;
    to.put(4 * word, pairs[i].high);
    to.put(4 * (word + kPartWords), pairs[i].low);
  }
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

  // Which of a sequence's cells are the batch's, begin .. end - 1 counted from the sequence's first; none
  // where begin >= end.
  struct Range {
    int begin, end;
  };
  DEVICE_FN Range of(const CellRow& row) const {
    const int batch_end = first + count - row.first;
    return {first > row.first ? first - row.first : 0, batch_end < row.count ? batch_end : row.count};
  }
};

// T, P and scales of the batch's cells; gdn_mma_cells.cc.
void make_cells(const Context& context, const GdnInputs<T>& in, const Batch& batch);
// O of its cells, and the states after it; gdn_mma_scan.cc.
void scan_cells(const Context& context, const GdnInputs<T>& in, const Batch& batch);
extern const size_t kScanSharedBytes;
// Both and the output, on Hopper; false, and nothing done, elsewhere. gdn_wgmma.cc or gdn_wgmma_none.cc.
bool scan_cells_wgmma(const Context& context, const GatedDelta& args, const Batch& batch);

}  // namespace longspan::ops::device::gdn
