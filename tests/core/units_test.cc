#include "core/units.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace longspan {
namespace {

TEST(Units, Bytes) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("64GiB"), size_t{64} << 30);
  EXPECT_EQ(parse_bytes("1.5 MB"), 1500000u);
  EXPECT_THROW(parse_bytes("64 apples"), Error);
  EXPECT_THROW(parse_bytes("-1GiB"), Error);
  EXPECT_THROW(parse_bytes(""), Error);
  EXPECT_THROW(parse_bytes("1e300GiB"), Error);
  EXPECT_EQ(format_bytes(25550504), "24.4 MiB");
  EXPECT_EQ(format_bytes(12), "12 B");
}

TEST(Units, SecondsAndCounts) {
  EXPECT_DOUBLE_EQ(parse_seconds("500ms"), 0.5);
  EXPECT_DOUBLE_EQ(parse_seconds("1800"), 1800);
  EXPECT_DOUBLE_EQ(parse_seconds("20m"), 1200);
  EXPECT_THROW(parse_seconds("nan"), Error);
  EXPECT_EQ(format_count(131072), "131,072");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_seconds(1256), "20 min 56 s");
}

}  // namespace
}  // namespace longspan
