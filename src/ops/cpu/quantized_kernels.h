// One panel of quantised columns and what is done with it. The layout is such that one shift and one mask
// turn a word of 4-bit codes into values (see kInt4 below), and that FP8 codes lie as vectors of columns.
#pragma once

#include "core/unroll.h"
#include "ops/cpu/tile_gemm.h"
#include "ops/ops.h"

namespace longspan::ops::cpu {

// 16 columns of a weight; memory is the weight's.
struct CodePanel {
  CodeKind kind;
  Index k;
  // kInt4: [ceil(k / 8)][16], one word a column: code 2 i of eight in bits 4 i, code 2 i + 1 in bits 16 + 4
  // i. kE4M3: [k][16] bytes. Codes past k are zero.
  const uint32_t* codes;
  const void* scales;  // [groups][16], 0 past the last column
  DType scale_dtype;
  const uint8_t* zeros;  // [groups][16] or nullptr: 8
  Index group_size;
  const int32_t* group_of;  // [k] or nullptr
};

// panel <- the values, each rounded to T, in the layout of tile_gemm.h.
void unpack_panel(const CodePanel& codes, bf16* panel);
void unpack_panel(const CodePanel& codes, float* panel);

// Decode rows made ready for one group size. Groups are ceil(k / group_size).
struct CodeRows {
  const bf16* x;  // [m, ldx]
  Index ldx;
  const float* values;  // [m, ld]: the rows, zero from k on
  const float* sums;    // [m, num_groups]: the sum of each group's values
  Index ld;             // a multiple of 16
  Index num_groups;
  Index m;
};

void widen_rows(const TensorView& x, float* values, Index ld);  // x bf16 [m, k]
void sum_groups(const float* values, Index ld, Index m, Index k, Index group_size, float* sums);

// sums [m, 16], rows ld_sums apart = rows W, for 4-bit codes whose octets share a group, and for FP8 codes in
// groups along k, which do without the rows' sums. A row's sums do not depend on m.
void multiply_panel(const CodePanel& codes, const CodeRows& rows, float* sums, Index ld_sums);

}  // namespace longspan::ops::cpu
