#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace longspan {
namespace {

// Every finite 16-bit pattern survives the way through float; NaN stays NaN.
template <class T>
void expect_round_trip() {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    T value;
    value.bits = static_cast<uint16_t>(pattern);
    const float wide = static_cast<float>(value);
    const T back(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(back))) << pattern;
    } else {
      EXPECT_EQ(back.bits, value.bits) << pattern;
    }
  }
}

TEST(DType, SixteenBitPatternsRoundTrip) {
  expect_round_trip<bf16>();
  expect_round_trip<f16>();
}

TEST(DType, RoundsToNearestEven) {
  EXPECT_EQ(bf16(1.00390625f).bits, 0x3f80);  // halfway between 1 and the next bf16: even
  EXPECT_EQ(bf16(1.01171875f).bits, 0x3f82);  // halfway: up to even
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(f16(0x1p-25f).bits, 0x0000);  // half of the smallest subnormal: even
  EXPECT_EQ(f16(0x1.8p-24f).bits, 0x0002);
  EXPECT_EQ(f16(-0.0f).bits, 0x8000);
}

TEST(DType, Fp8PatternsRoundTripAndSaturate) {
  for (uint32_t pattern = 0; pattern < 0x100; ++pattern) {
    f8e4m3 value;
    value.bits = static_cast<uint8_t>(pattern);
    const float wide = static_cast<float>(value);
    if (std::isnan(wide)) continue;
    EXPECT_EQ(f8e4m3(wide).bits, pattern);
  }
  EXPECT_EQ(static_cast<float>(f8e4m3(1e6f)), 448.0f);
  EXPECT_EQ(static_cast<float>(f8e4m3(-500.0f)), -448.0f);
  EXPECT_TRUE(std::isnan(static_cast<float>(f8e4m3(std::nanf("")))));
  EXPECT_EQ(f8e4m3(0x1p-10f).bits, 0);  // tie to even
  EXPECT_EQ(f8e4m3(0x1.8p-9f).bits, 2);
}

TEST(DType, NamesGoBothWays) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI64, DType::kBool})
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  EXPECT_EQ(dtype_from_name("bf16"), DType::kBF16);
  EXPECT_THROW(dtype_from_name("int5"), Error);
}

}  // namespace
}  // namespace longspan
