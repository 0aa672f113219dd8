#include "cache/block_table.h"

#include <algorithm>

#include "core/error.h"

namespace longspan::cache {

BlockTable::BlockTable(int32_t num_rows, int32_t num_columns)
    : num_rows_(num_rows),
      num_columns_(num_columns),
      entries_(static_cast<size_t>(num_rows) * static_cast<size_t>(num_columns), -1),
      lengths_(static_cast<size_t>(num_rows), 0),
      dirty_(static_cast<size_t>(num_rows), 1),  // the device's memory is not -1 yet
      num_dirty_(num_rows) {}

int32_t* BlockTable::entries_of(int32_t row) {
  CHECK_MSG(row >= 0 && row < num_rows_, "[block table] row {} of {}", row, num_rows_);
  return entries_.data() + static_cast<size_t>(row) * static_cast<size_t>(num_columns_);
}

std::span<const int32_t> BlockTable::row(int32_t row) const {
  CHECK_MSG(row >= 0 && row < num_rows_, "[block table] row {} of {}", row, num_rows_);
  const size_t width = static_cast<size_t>(num_columns_);
  return {entries_.data() + static_cast<size_t>(row) * width, width};
}

int32_t BlockTable::length(int32_t row) const { return lengths_[static_cast<size_t>(row)]; }

void BlockTable::mark(int32_t row) {
  uint8_t& dirty = dirty_[static_cast<size_t>(row)];
  num_dirty_ += dirty == 0;
  dirty = 1;
}

void BlockTable::append(int32_t row, int32_t page) {
  int32_t* entries = entries_of(row);
  int32_t& length = lengths_[static_cast<size_t>(row)];
  CHECK_MSG(length < num_columns_, "[block table] row {} is full: {} pages", row, num_columns_);
  entries[length++] = page;
  mark(row);
}

void BlockTable::assign(int32_t row, std::span<const int32_t> pages) {
  CHECK_MSG(pages.size() <= static_cast<size_t>(num_columns_), "[block table] got {} pages, row holds {}",
            pages.size(), num_columns_);
  int32_t* entries = entries_of(row);
  std::copy(pages.begin(), pages.end(), entries);
  std::fill(entries + pages.size(), entries + num_columns_, -1);
  lengths_[static_cast<size_t>(row)] = static_cast<int32_t>(pages.size());
  mark(row);
}

void BlockTable::clear_row(int32_t row) {
  if (length(row) > 0) assign(row, {});
}

void BlockTable::move_row(int32_t from, int32_t to) {
  CHECK_MSG(length(to) == 0, "[block table] move of row {} onto row {}, which holds {} pages", from, to,
            length(to));
  swap_rows(from, to);
}

void BlockTable::swap_rows(int32_t a, int32_t b) {
  if (a == b) return;
  int32_t* entries = entries_of(a);
  std::swap_ranges(entries, entries + num_columns_, entries_of(b));
  std::swap(lengths_[static_cast<size_t>(a)], lengths_[static_cast<size_t>(b)]);
  mark(a);
  mark(b);
}

void BlockTable::clear() {
  for (int32_t row = 0; row < num_rows_; ++row) clear_row(row);
}

void BlockTable::commit(const std::function<void(int32_t, std::span<const int32_t>)>& copy) {
  if (num_dirty_ == 0) return;
  const size_t width = static_cast<size_t>(num_columns_);
  for (int32_t first = 0; first < num_rows_;) {
    if (dirty_[static_cast<size_t>(first)] == 0) {
      ++first;
      continue;
    }
    int32_t end = first;
    while (end < num_rows_ && dirty_[static_cast<size_t>(end)] != 0) dirty_[static_cast<size_t>(end++)] = 0;
    copy(first,
         {entries_.data() + static_cast<size_t>(first) * width, static_cast<size_t>(end - first) * width});
    ++num_copies_;
    first = end;
  }
  num_dirty_ = 0;
}

TokenPlace locate(std::span<const int32_t> row, int64_t position, int64_t page_tokens) {
  TokenPlace place;
  place.logical = static_cast<int32_t>(position / page_tokens);
  place.offset = static_cast<int32_t>(position % page_tokens);
  if (place.logical < static_cast<int32_t>(row.size()))
    place.physical = row[static_cast<size_t>(place.logical)];
  if (place.physical >= 0) place.slot = place.physical * page_tokens + place.offset;
  return place;
}

bool has_kernel_pages(int64_t page_tokens, int64_t kernel_tokens) {
  return kernel_tokens > 0 && page_tokens % kernel_tokens == 0;
}

KernelTables expand_row(std::span<const int32_t> row, int64_t page_tokens, int64_t kernel_tokens) {
  CHECK_MSG(has_kernel_pages(page_tokens, kernel_tokens), "[kernel pages] page {} is not a multiple of {}",
            page_tokens, kernel_tokens);
  const int32_t n = static_cast<int32_t>(page_tokens / kernel_tokens);
  KernelTables tables;
  tables.k.reserve(row.size() * static_cast<size_t>(n));
  tables.v.reserve(row.size() * static_cast<size_t>(n));
  for (const int32_t page : row) {
    for (int32_t i = 0; i < n; ++i) {
      tables.k.push_back(page < 0 ? -1 : page * 2 * n + i);
      tables.v.push_back(page < 0 ? -1 : page * 2 * n + n + i);
    }
  }
  return tables;
}

}  // namespace longspan::cache
