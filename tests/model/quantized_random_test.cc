// Layers drawn in few bits: as wide as they should be, the same for the same key, refused where unknown.
#include "model/quantized_random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/dequantize.h"

namespace longspan::model {
namespace {

constexpr Index kN = 48, kK = 320;
ThreadPool serial(1);

io::QuantConfig awq(bool symmetric) {
  return {.method = io::QuantMethod::kAwq,
          .method_name = "awq",
          .bits = 4,
          .group_size = 128,
          .symmetric = symmetric};
}

double deviation_of(const ops::QuantizedPart& part) {
  double sum = 0, squares = 0;
  for (Index n = 0; n < kN; ++n)
    for (Index k = 0; k < kK; ++k) {
      const double value = ops::dequantized(part, n, k);
      sum += value;
      squares += value * value;
    }
  const double mean = sum / (kN * kK);
  EXPECT_LT(std::abs(mean), 0.004);
  return std::sqrt(squares / (kN * kK) - mean * mean);
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.size_bytes() == b.size_bytes() && std::memcmp(a.data, b.data, a.size_bytes()) == 0;
}

TEST(QuantizedRandom, HasTheDeviationOfADenseLayer) {
  io::QuantConfig fp8{.method = io::QuantMethod::kFp8, .method_name = "fp8", .block = {32, 64}};
  for (const io::QuantConfig& config : {awq(true), awq(false), fp8}) {
    const QuantizedLinear layer = random_quantized(5, config, kN, kK, 0.02f, serial);
    EXPECT_NEAR(deviation_of(layer.part), 0.02, 0.003) << config.method_name;
  }
}

TEST(QuantizedRandom, FollowsItsKeyAndTheGroupsOfTheConfig) {
  const QuantizedLinear one = random_quantized(5, awq(false), kN, kK, 0.02f, serial);
  const QuantizedLinear again = random_quantized(5, awq(false), kN, kK, 0.02f, serial);
  const QuantizedLinear other = random_quantized(6, awq(false), kN, kK, 0.02f, serial);
  EXPECT_TRUE(same_bytes(one.part.codes, again.part.codes));
  EXPECT_TRUE(same_bytes(one.part.scales, again.part.scales));
  EXPECT_TRUE(same_bytes(one.part.zeros, again.part.zeros));
  EXPECT_FALSE(same_bytes(one.part.codes, other.part.codes));
  EXPECT_FALSE(same_bytes(one.part.scales, other.part.scales));
  EXPECT_EQ(one.part.scales.dim(1), 3);
  EXPECT_TRUE(random_quantized(5, awq(true), kN, kK, 0.02f, serial).part.zeros.empty());
}

// More than one task of each plane.
TEST(QuantizedRandom, TheBitsAreThoseOfOneThread) {
  const io::QuantConfig fp8{.method = io::QuantMethod::kFp8, .method_name = "fp8", .block = {4, 4}};
  const Index n = 637, k = 1042;
  ThreadPool pool(3);
  io::QuantConfig small_groups = awq(false);
  small_groups.group_size = 16;
  for (const io::QuantConfig& config : {small_groups, fp8}) {
    const QuantizedLinear one = random_quantized(5, config, n, k, 0.02f, serial);
    const QuantizedLinear many = random_quantized(5, config, n, k, 0.02f, pool);
    EXPECT_TRUE(same_bytes(one.part.codes, many.part.codes)) << config.method_name;
    EXPECT_TRUE(same_bytes(one.part.scales, many.part.scales)) << config.method_name;
    if (!config.symmetric) {
      EXPECT_TRUE(same_bytes(one.part.zeros, many.part.zeros));
    }
  }
}

TEST(QuantizedRandom, RefusesWhatItCannotDraw) {
  io::QuantConfig config = awq(true);
  config.bits = 3;
  config.source = "config.json: quantization_config";
  try {
    random_quantized(1, config, kN, kK, 0.02f, serial);
    FAIL() << "3 bits were drawn";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("awq with 3 bits"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace longspan::model
