// What quantize() writes is read back bit by bit, and is as near as rounding to nearest can be.
#include "model/quantized_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include <unistd.h>

#include "model/quantized_reader.h"
#include "ops/dequantize.h"

namespace longspan::model {
namespace {

ThreadPool one_thread(1);

Buffer random_weight(Index n, Index k) {
  Buffer buffer(DType::kBF16, {n, k});
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.005f, 0.02f);
  for (Index i = 0; i < n * k; ++i) buffer.view().as<bf16>()[i] = bf16(normal(random));
  return buffer;
}

// [n, k] of the packed tensors, through a file and the reader.
std::vector<float> read_back(const PackedLinear& packed) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("longspan_writer_" + std::to_string(::getpid()) + ".safetensors");
  std::vector<io::NamedTensor> tensors;
  for (const PackedLinear::Tensor& tensor : packed.tensors)
    tensors.push_back({"m" + tensor.suffix, tensor.buffer.view()});
  io::write_safetensors(path, tensors);
  const io::TensorStore store(path);
  const io::LinearLayout layout = io::find_linear(store, {}, "m");
  const QuantizedLinear linear = read_quantized(store, {}, layout, one_thread);
  std::vector<float> values;
  for (Index n = 0; n < layout.out_features; ++n)
    for (Index k = 0; k < layout.in_features; ++k) values.push_back(ops::dequantized(linear.part, n, k));
  std::filesystem::remove(path);
  return values;
}

TEST(QuantizedWriter, WhatIsReadBackIsWhatTheReportSays) {
  const Index n = 24, k = 128;
  Buffer weight = random_weight(n, k);
  std::fill_n(weight.view().as<bf16>(), 64, bf16(0.0f));  // a group of zeros, or two
  for (const PackedLayout layout : {PackedLayout::kAwq, PackedLayout::kCompressedTensors})
    for (const bool symmetric : {false, true})
      for (const Index group_size : {32, 64, 128}) {
        const PackedLinear packed = quantize(
            weight.view(), {.layout = layout, .group_size = group_size, .symmetric = symmetric}, one_thread);
        const std::vector<float> values = read_back(packed);
        double error = 0, of_rows = 0;  // eight rows at a time, as the writer adds them up
        float largest = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          const float difference = static_cast<float>(weight.view().as<bf16>()[i]) - values[i];
          of_rows += static_cast<double>(difference) * static_cast<double>(difference);
          if ((i + 1) % static_cast<size_t>(8 * k) == 0) error += std::exchange(of_rows, 0.0);
          largest = std::max(largest, std::abs(difference));
        }
        EXPECT_EQ(error, packed.squared_error);
        EXPECT_EQ(largest, packed.largest_error);
        EXPECT_LT(packed.relative_error(), group_size == 32 ? 0.11 : 0.14);
        EXPECT_GT(packed.relative_error(), 0.03);
        for (size_t i = 0; i < 32; ++i) EXPECT_EQ(values[i], 0.0f);
      }
}

// Values on a grid of fifteen steps come back exactly.
TEST(QuantizedWriter, ExactWhereSixteenLevelsSuffice) {
  Buffer weight(DType::kBF16, {8, 64});
  for (Index i = 0; i < 8 * 64; ++i)
    weight.view().as<bf16>()[i] = bf16(static_cast<float>(i % 16 - 4) * 0.125f);
  for (const PackedLayout layout : {PackedLayout::kAwq, PackedLayout::kCompressedTensors}) {
    const PackedLinear packed = quantize(weight.view(), {.layout = layout, .group_size = 32}, one_thread);
    EXPECT_EQ(packed.squared_error, 0);
    EXPECT_EQ(read_back(packed)[5], 0.125f);
  }
}

// Codes and the report alike, where rows share words and where the last word is not full.
TEST(QuantizedWriter, ThreadsChangeNothing) {
  ThreadPool pool(3);
  for (const PackedLayout layout : {PackedLayout::kAwq, PackedLayout::kCompressedTensors}) {
    const Buffer weight = random_weight(layout == PackedLayout::kAwq ? 200 : 205, 256);
    const QuantizeOptions options{.layout = layout, .group_size = 32};
    const PackedLinear one = quantize(weight.view(), options, one_thread);
    const PackedLinear many = quantize(weight.view(), options, pool);
    ASSERT_EQ(one.tensors.size(), many.tensors.size());
    for (size_t i = 0; i < one.tensors.size(); ++i)
      EXPECT_EQ(std::memcmp(one.tensors[i].buffer.data(), many.tensors[i].buffer.data(),
                            one.tensors[i].buffer.size_bytes()),
                0)
          << one.tensors[i].suffix;
    EXPECT_EQ(one.squared_error, many.squared_error);
    EXPECT_EQ(one.squared_norm, many.squared_norm);
    EXPECT_EQ(one.largest_error, many.largest_error);
  }
}

TEST(QuantizedWriter, KnowsWhatFits) {
  EXPECT_TRUE(can_quantize(16, 128, {.group_size = 128}));
  EXPECT_FALSE(can_quantize(16, 130, {.group_size = 128}));
  EXPECT_FALSE(can_quantize(12, 128, {.layout = PackedLayout::kAwq, .group_size = 128}));
  EXPECT_TRUE(can_quantize(12, 128, {.layout = PackedLayout::kCompressedTensors, .group_size = 128}));
}

}  // namespace
}  // namespace longspan::model
