// How a matrix product is cut into tasks. Sizes change speed, never results.
#pragma once

#include <algorithm>

#include "core/tensor.h"

namespace longspan::ops::cpu {

struct BlockSize {
  Index rows;  // of x: one task's
  Index cols;  // of the weight: panels that stay in the second-level cache while rows stream by
};

inline constexpr Index kRowsAtOnce = 32;  // rows of one call of gemm: a tile block

constexpr Index round_up(Index value, Index unit) { return (value + unit - 1) / unit * unit; }
constexpr Index num_blocks(Index value, Index unit) { return (value + unit - 1) / unit; }

// num_cols in equal slices of at most max_cols, whole units.
constexpr Index even_slice(Index num_cols, Index max_cols, Index unit) {
  return round_up(num_blocks(num_cols, num_blocks(num_cols, max_cols)), unit);
}

// Rows read in place. column_bytes: one packed column.
constexpr BlockSize block_size(Index num_rows, Index num_cols, Index column_bytes, Index num_threads) {
  constexpr Index kUnit = 96;                // whole blocks of both tile shapes, 32 and 48 columns
  constexpr Index kPanelBytes = 1280 << 10;  // of 2 MiB of second-level cache; the rest is for x and sums
  constexpr Index kMaxCols = 480;
  constexpr Index kMaxRows = 256;
  const Index fitting = std::clamp(kPanelBytes / column_bytes / kUnit * kUnit, kUnit, kMaxCols);
  // Decode is one pass over the weight: enough tasks that no thread waits long for the last one.
  const Index tasks_wanted = num_threads == 1 ? 1 : 4 * num_threads;
  const Index col_tasks = std::max<Index>(1, tasks_wanted / num_blocks(num_rows, kMaxRows));
  return {.rows = std::min(num_rows, kMaxRows),
          .cols = std::min(fitting, round_up(num_blocks(num_cols, col_tasks), kUnit))};
}

// Rows packed for a matrix unit. Sapphire Rapids, one thread, TFLOP/s of a raw peak of 2.9: 1.7 at K
// 1024, 1.4 at 2048; at 3584, 1.1 with 128 columns, 1.0 with 192, which crowd the rows out of the cache.
constexpr BlockSize packed_block_size(Index num_rows, Index num_cols, Index column_bytes, Index num_threads) {
  constexpr Index kUnit = 32;
  constexpr Index kPanelBytes = 1100 << 10;
  constexpr Index kMaxCols = 320;
  const Index fitting = std::clamp(kPanelBytes / column_bytes / kUnit * kUnit, kUnit, kMaxCols);
  const Index cols = even_slice(num_cols, fitting, kUnit);
  // Long blocks of rows read the panels seldom (2048 gain 2 to 4 % on 1024); shorter ones where threads would
  // stay without a task.
  Index rows = 2048;
  while (rows > 64 && num_blocks(num_rows, rows) * num_blocks(num_cols, cols) < 4 * num_threads) rows /= 2;
  return {.rows = rows, .cols = cols};
}

// Rows packed at a time; they pass through the third-level cache once a slice of columns.
inline constexpr Index kPackedChunkRows = 2048;

// An output this large leaves the caches before anyone reads it.
inline constexpr Index kPastCachesBytes = Index{8} << 20;

}  // namespace longspan::ops::cpu
