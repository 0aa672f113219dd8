// BlockTable: the logical-to-physical page map of one layer group, as the kernels read it: int32, -1 where
// unset. A host mirror that remembers which rows the device has not seen. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace longspan::cache {

class BlockTable {
 public:
  BlockTable(int32_t num_rows, int32_t num_columns);

  int32_t num_rows() const { return num_rows_; }
  int32_t num_columns() const { return num_columns_; }     // = max pages of a sequence
  const int32_t* data() const { return entries_.data(); }  // [num_rows, num_columns]
  std::span<const int32_t> row(int32_t row) const;         // [num_columns]
  int32_t length(int32_t row) const;                       // pages set in the row

  // Each of these marks the rows that it changes.
  void append(int32_t row, int32_t page);
  void assign(int32_t row, std::span<const int32_t> pages);
  void clear_row(int32_t row);
  void move_row(int32_t from, int32_t to);  // `to` must be clear; `from` becomes clear
  void swap_rows(int32_t a, int32_t b);
  void clear();  // every row that was not clear already; the device follows at the next commit

  bool is_dirty() const { return num_dirty_ > 0; }
  // The one way to the device: copy(first_row, entries [n, num_columns]) for each run of changed rows, if
  // any.
  void commit(const std::function<void(int32_t, std::span<const int32_t>)>& copy);
  int64_t num_copies() const { return num_copies_; }  // calls of `copy` so far

 private:
  int32_t* entries_of(int32_t row);
  void mark(int32_t row);

  int32_t num_rows_ = 0;
  int32_t num_columns_ = 0;
  std::vector<int32_t> entries_;  // [num_rows, num_columns]
  std::vector<int32_t> lengths_;  // [num_rows]
  std::vector<uint8_t> dirty_;    // [num_rows]
  int32_t num_dirty_ = 0;
  int64_t num_copies_ = 0;
};

// Where a token lives: logical = position / page, offset = position % page, physical = row[logical].
struct TokenPlace {
  int32_t logical = 0;
  int32_t offset = 0;
  int32_t physical = -1;
  int64_t slot = -1;  // physical * page_tokens + offset; -1 where the row is unset
};
TokenPlace locate(std::span<const int32_t> row, int64_t position, int64_t page_tokens);

// A kernel that wants pages of kernel_tokens (64) and one table each for K and V reads the same pool in units
// of kernel pages: with n = page_tokens / kernel_tokens, pool page p is K pages p*2n + 0..n-1 and V pages
// p*2n + n..2n-1. 832 is 13 of 64; 784 = 12 * 64 + 16 has no such view.
bool has_kernel_pages(int64_t page_tokens, int64_t kernel_tokens);
struct KernelTables {
  std::vector<int32_t> k;  // [num_columns * n], -1 where unset
  std::vector<int32_t> v;  // [num_columns * n]
};
KernelTables expand_row(std::span<const int32_t> row, int64_t page_tokens, int64_t kernel_tokens);

}  // namespace longspan::cache
