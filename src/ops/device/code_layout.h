// Where the codes, scales and zeros of quantised parts come to lie on a device, and what they take:
// arithmetic over shapes, no device. code_rows.h has what kernels make of it.
#pragma once

#include <vector>

#include "ops/device/backend.h"

namespace longspan::ops::device {

constexpr int kBlockCodes = 128;
constexpr int kBlockWords = kBlockCodes / 8;  // uint32_t
constexpr int kInt4Unit = 32;                 // codes of a 16-byte word: groups of whole ones are
constexpr int kE4M3Unit = 16;                 // multiplied packed
constexpr int kTileRows = 16;

// How the codes of a row lie: code_rows.h says why.
struct CodeOrder {
  Index k = 0;                         // places
  int group_size = 0;                  // of them
  std::vector<int32_t> column_of;      // [k], -1: no code lies there. Empty: as in the part, and so is
  std::vector<int32_t> group_of_unit;  // [k / group_size], the part's group of each of these

  Index num_units(const QuantizedPart& part) const {
    return column_of.empty() ? part.scales.dim(1) : std::ssize(group_of_unit);
  }
  // The part's group whose scale and zero a unit has.
  Index group_of(Index unit) const {
    return column_of.empty() ? unit : group_of_unit[static_cast<size_t>(unit)];
  }
};
CodeOrder order_of(const QuantizedPart& part);
Index code_stride_bytes(CodeKind kind, Index k);  // from one row of k places to the next

// Parts that lie behind each other as one.
using CodeRun = std::vector<const QuantizedPart*>;
// The quantised parts from parts[begin] on that do; empty where that one is dense.
CodeRun run_from(std::span<const WeightPart> parts, size_t begin);
Index num_rows_of(const CodeRun& run);

// Scales of 16 bits and their zeros in one word; span 0: they lie apart.
struct AffineLayout {
  int span = 0;       // codes with one word: 32, 64 or 128, at most the group's
  int per_group = 0;  // words of a group
  Index rows = 0;     // words of a row of codes
  Index columns = 0;  // rows of codes in whole tiles
};
AffineLayout affine_layout(const CodeRun& run, const CodeOrder& order);

// Rows of `row_bytes` of an [n, K] weight that a workspace of limit_bytes (0: any size) holds at once: whole
// runs of eight, for then out's columns stay aligned for the library, or all.
Index rows_at_once(Index n, Index row_bytes, size_t limit_bytes);
// What products with such a run want of it: room for unpacked rows, and for rows of x in another order.
size_t workspace_bytes(const CodeRun& run, const CodeOrder& order, DType dtype,
                       const BackendOptions& options);

}  // namespace longspan::ops::device
