// How a matrix product is cut into tasks. Sizes change speed, never results.
#pragma once

#include <algorithm>

#include "core/tensor.h"

namespace longspan::ops::cpu {

struct BlockSize {
  Index rows;  // of x: one task's
  Index cols;  // of the weight: panels that stay in the second-level cache while rows stream by
};

inline constexpr Index kColsUnit = 96;    // whole blocks of both tile shapes (32 and 48 columns)
inline constexpr Index kRowsAtOnce = 32;  // rows of one call of gemm: a tile block

constexpr Index round_up(Index value, Index unit) { return (value + unit - 1) / unit * unit; }

// column_bytes: one packed column.
constexpr BlockSize block_size(Index num_rows, Index num_cols, Index column_bytes, Index num_threads) {
  constexpr Index kPanelBytes = 1280 << 10;  // of 2 MiB of second-level cache; the rest is for x and sums
  constexpr Index kMaxCols = 480;
  constexpr Index kMaxRows = 256;
  const Index fitting = std::clamp(kPanelBytes / column_bytes / kColsUnit * kColsUnit, kColsUnit, kMaxCols);
  // Decode: one pass over the weight; enough tasks that no thread waits long for the last one.
  const Index tasks_wanted = num_threads == 1 ? 1 : 4 * num_threads;
  const Index row_tasks = (num_rows + kMaxRows - 1) / kMaxRows;
  const Index col_tasks = std::max<Index>(1, tasks_wanted / row_tasks);
  const Index cols = std::min(fitting, round_up((num_cols + col_tasks - 1) / col_tasks, kColsUnit));
  return {.rows = std::min(num_rows, kMaxRows), .cols = cols};
}

}  // namespace longspan::ops::cpu
