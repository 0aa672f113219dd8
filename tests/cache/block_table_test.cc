#include "cache/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace longspan::cache {
namespace {

// The device's copy of a table, kept by commit() alone.
struct DeviceTable {
  explicit DeviceTable(BlockTable& table)
      : host(table), entries(static_cast<size_t>(table.num_rows() * table.num_columns()), 12345) {}

  void commit() {
    host.commit([&](int32_t first_row, std::span<const int32_t> rows) {
      std::copy(rows.begin(), rows.end(), entries.begin() + first_row * host.num_columns());
      num_rows_copied += static_cast<int32_t>(rows.size()) / host.num_columns();
    });
  }
  bool equals_host() const { return std::equal(entries.begin(), entries.end(), host.data()); }

  BlockTable& host;
  std::vector<int32_t> entries;
  int32_t num_rows_copied = 0;
};

TEST(BlockTable, StartsUnsetOnBothSides) {
  BlockTable table(4, 3);
  DeviceTable device(table);
  device.commit();
  EXPECT_EQ(std::count(device.entries.begin(), device.entries.end(), -1), 12);
}

TEST(BlockTable, CommitCopiesTheChangedRowsOnly) {
  BlockTable table(8, 4);
  DeviceTable device(table);
  device.commit();
  device.num_rows_copied = 0;
  const int64_t copies = table.num_copies();
  table.append(2, 7);
  table.append(3, 8);
  table.append(6, 9);
  EXPECT_TRUE(table.is_dirty());
  device.commit();
  EXPECT_EQ(device.num_rows_copied, 3);
  EXPECT_EQ(table.num_copies() - copies, 2);  // rows 2..3 in one copy, row 6 in another
  EXPECT_TRUE(device.equals_host());
  EXPECT_FALSE(table.is_dirty());
}

TEST(BlockTable, AThousandDecodeStepsInsideOnePageCopyNothing) {
  const int64_t page_tokens = 1024;
  BlockTable table(1, 4);
  DeviceTable device(table);
  table.append(0, 5);
  device.commit();
  const int64_t copies = table.num_copies();
  for (int64_t position = 1; position <= 1000; ++position) {
    if (position / page_tokens == table.length(0)) table.append(0, 6);
    device.commit();
  }
  EXPECT_EQ(table.num_copies() - copies, 0);
}

TEST(BlockTable, MoveSwapAndClearReachTheDevice) {
  BlockTable table(4, 3);
  DeviceTable device(table);
  table.assign(0, std::vector<int32_t>{1, 2, 3});
  table.assign(1, std::vector<int32_t>{4});
  device.commit();

  table.swap_rows(0, 1);
  device.commit();
  EXPECT_TRUE(device.equals_host());
  EXPECT_EQ(table.row(0)[0], 4);
  EXPECT_EQ(table.length(1), 3);

  table.move_row(1, 3);
  device.commit();
  EXPECT_TRUE(device.equals_host());
  EXPECT_EQ(table.length(1), 0);
  EXPECT_EQ(table.row(3)[2], 3);

  table.assign(3, std::vector<int32_t>{9});  // shorter: the rest is unset again
  EXPECT_EQ(table.row(3)[1], -1);

  table.clear();
  device.commit();
  EXPECT_TRUE(device.equals_host());
  EXPECT_EQ(std::count(device.entries.begin(), device.entries.end(), -1), 12);
}

TEST(BlockTable, ClearOfWhatIsClearCopiesNothing) {
  BlockTable table(4, 3);
  DeviceTable device(table);
  device.commit();
  table.clear();
  table.clear_row(1);
  EXPECT_FALSE(table.is_dirty());
}

TEST(BlockTableDeathTest, OverfullRowsAndOccupiedTargetsAbort) {
  BlockTable table(2, 1);
  table.append(0, 1);
  table.append(1, 2);
  EXPECT_DEATH(table.append(0, 3), "row 0 is full");
  EXPECT_DEATH(table.move_row(0, 1), "move of row 0 onto row 1");
  EXPECT_DEATH(table.append(2, 1), "row 2 of 2");
}

TEST(Locate, AddressesOfTheFieldReports) {
  const std::vector<int32_t> row = {5, 9, -1};
  const TokenPlace place = locate(row, 1000, 832);
  EXPECT_EQ(place.logical, 1);
  EXPECT_EQ(place.offset, 168);
  EXPECT_EQ(place.physical, 9);
  EXPECT_EQ(place.slot, 9 * 832 + 168);
  EXPECT_EQ(locate(row, 831, 832).slot, 5 * 832 + 831);
  EXPECT_EQ(locate(row, 2 * 832, 832).slot, -1);  // unset
  EXPECT_EQ(locate(row, 3 * 832, 832).slot, -1);  // beyond the row
}

TEST(Locate, SlotsDoNotOverflow32Bits) {
  const std::vector<int32_t> row = {2000000000};
  EXPECT_EQ(locate(row, 3, 832).slot, int64_t{2000000000} * 832 + 3);
}

TEST(KernelPages, A832PageIsThirteenPagesOf64ForKAndForV) {
  ASSERT_TRUE(has_kernel_pages(832, 64));
  EXPECT_FALSE(has_kernel_pages(784, 64));
  const KernelTables tables = expand_row(std::vector<int32_t>{3, -1}, 832, 64);
  ASSERT_EQ(tables.k.size(), 26u);
  ASSERT_EQ(tables.v.size(), 26u);
  for (int32_t i = 0; i < 13; ++i) {
    EXPECT_EQ(tables.k[static_cast<size_t>(i)], 3 * 26 + i);
    EXPECT_EQ(tables.v[static_cast<size_t>(i)], 3 * 26 + 13 + i);
    EXPECT_EQ(tables.k[static_cast<size_t>(13 + i)], -1);
    EXPECT_EQ(tables.v[static_cast<size_t>(13 + i)], -1);
  }
}

// A token found through the expanded tables is the token found through the pool page.
TEST(KernelPages, BothViewsReadTheSameMemory) {
  const int64_t page_tokens = 192, kernel_tokens = 64;
  const std::vector<int32_t> row = {4, 0, 7};
  const KernelTables tables = expand_row(row, page_tokens, kernel_tokens);
  for (int64_t position = 0; position < 3 * page_tokens; ++position) {
    const TokenPlace place = locate(row, position, page_tokens);
    // In units of tokens of one plane: page [2, page_tokens].
    const int64_t k = place.physical * 2 * page_tokens + place.offset;
    const size_t kernel_page = static_cast<size_t>(position / kernel_tokens);
    EXPECT_EQ(tables.k[kernel_page] * kernel_tokens + position % kernel_tokens, k);
    EXPECT_EQ(tables.v[kernel_page] * kernel_tokens + position % kernel_tokens, k + page_tokens);
  }
}

}  // namespace
}  // namespace longspan::cache
