// Cells: the squares of the absolute 64-token grid that prompt chunks touch. A chunk that begins or ends
// inside one brings a short cell. Those of all prompt sequences are numbered in order.
#pragma once

#include "ops/device/paged_kv.h"

namespace longspan::ops::device {

constexpr int kCell = static_cast<int>(kGdnChunk);  // tokens

struct Cell {
  int seq_idx;    // -1: there is none
  int first_row;  // token row
  int num_rows;
  int position;  // of its first token
};

// The cells of one sequence.
struct CellRow {
  Span span;
  int seq_idx;
  int first;  // number of its first cell
  int count;

  DEVICE_FN Cell cell(int i) const {  // of [0, count)
    const int start = (span.context_len / kCell + i) * kCell;
    const int end = span.context_len + span.num_rows;
    const int from = i == 0 ? span.context_len : start;
    const int to = start + kCell < end ? start + kCell : end;
    return {seq_idx, span.first_row + from - span.context_len, to - from, from};
  }
};

struct CellTable {
  SeqTable seqs;
  int first_seq;
  int end_seq;

  DEVICE_FN CellRow row(int seq_idx, int first) const {
    const Span span = seqs.span(seq_idx);
    const int last = span.context_len + span.num_rows + kCell - 1;
    return {span, seq_idx, first, last / kCell - span.context_len / kCell};
  }
  DEVICE_FN CellRow row(int seq_idx) const {
    int first = 0;
    for (int i = first_seq; i < seq_idx; ++i) first += row(i, 0).count;
    return row(seq_idx, first);
  }
  DEVICE_FN Cell find(int cell) const {
    int first = 0;
    for (int i = first_seq; i < end_seq; ++i) {
      const CellRow cells = row(i, first);
      if (cell < first + cells.count) return cells.cell(cell - first);
      first += cells.count;
    }
    return {-1, 0, 0, 0};
  }
};

// At most: n tokens of a sequence touch (n + 62) / 64 + 1 cells when the first is the last of its cell.
inline int max_cells(Index num_rows, int num_seqs) {
  return static_cast<int>((num_rows + (kCell - 2) * num_seqs) / kCell) + num_seqs;
}

}  // namespace longspan::ops::device
