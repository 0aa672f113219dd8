// A layer of known codes, scales and zeros, written bit by bit in each published layout (MODEL 4.1 to 4.3):
// random ones, or those of weights rounded to nearest.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "io/quantized_linear.h"
#include "model/quantized_reader.h"
#include "ops/dequantize.h"

namespace longspan::model {

class PackedLayer {
 public:
  PackedLayer(Index n, Index k, Index group_size) : n_(n), k_(k), group_size_(group_size) {
    for (Index i = 0; i < n * k; ++i) codes_.push_back(static_cast<int>(random_() % 16));
    for (Index i = 0; i < n * groups(); ++i) {
      zeros_.push_back(static_cast<int>(random_() % 15) + 1);  // 1 .. 15: every layout can store them
      scales_.push_back(static_cast<float>(random_() % 255 + 1) / 4096.0f);  // exact in every float type
    }
    for (Index i = 0; i < k; ++i) group_of_.push_back(static_cast<int32_t>(i / group_size));
  }

  Index groups() const { return (k_ + group_size_ - 1) / group_size_; }
  void permute_groups() { std::shuffle(group_of_.begin(), group_of_.end(), random_); }
  // The nearest codes of weights [n, k], with scales that bf16 holds; a group is whatever it is by now.
  void fit(const std::vector<float>& weights) {
    for (Index n = 0; n < n_; ++n)
      for (Index g = 0; g < groups(); ++g) fit_group(weights, n, g);
  }
  const std::vector<int32_t>& group_of() const { return group_of_; }
  const std::deque<std::pair<std::string, Buffer>>& tensors() const { return buffers_; }
  void make_symmetric() { zeros_.assign(zeros_.size(), 8); }
  float value(Index n, Index k) const {
    const auto at = static_cast<size_t>(n * groups() + group_of_[static_cast<size_t>(k)]);
    return static_cast<float>(codes_[static_cast<size_t>(n * k_ + k)] - zeros_[at]) * scales_[at];
  }

  void add_awq(const std::string& module) {
    constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};  // nibble p of a word holds column 8 w + kOrder[p]
    Buffer& codes = add(module + ".qweight", DType::kI32, {k_, n_ / 8});
    Buffer& zeros = add(module + ".qzeros", DType::kI32, {groups(), n_ / 8});
    for (Index w = 0; w < n_ / 8; ++w)
      for (int p = 0; p < 8; ++p) {
        const Index n = 8 * w + kOrder[p];
        for (Index k = 0; k < k_; ++k) put(codes, k * (n_ / 8) + w, p, code(n, k));
        for (Index g = 0; g < groups(); ++g) put(zeros, g * (n_ / 8) + w, p, zero(n, g));
      }
    add_scales<f16>(module + ".scales", /*by_columns=*/true);
  }

  void add_gptq(const std::string& module, int zero_offset, bool with_index) {
    Buffer& codes = add(module + ".qweight", DType::kI32, {k_ / 8, n_});
    Buffer& zeros = add(module + ".qzeros", DType::kI32, {groups(), n_ / 8});
    for (Index n = 0; n < n_; ++n) {
      for (Index k = 0; k < k_; ++k) put(codes, k / 8 * n_ + n, static_cast<int>(k % 8), code(n, k));
      for (Index g = 0; g < groups(); ++g)
        put(zeros, g * (n_ / 8) + n / 8, static_cast<int>(n % 8), zero(n, g) - zero_offset);
    }
    add_scales<bf16>(module + ".scales", /*by_columns=*/true);
    if (with_index) add_index(module + ".g_idx");
  }

  template <class Scale, class Size>
  void add_packed(const std::string& module, bool with_zeros, bool with_index) {
    const Index words = (k_ + 7) / 8;
    Buffer& codes = add(module + ".weight_packed", DType::kI32, {n_, words});
    for (Index n = 0; n < n_; ++n)
      for (Index k = 0; k < k_; ++k) put(codes, n * words + k / 8, static_cast<int>(k % 8), code(n, k));
    Buffer& size = add(module + ".weight_shape", dtype_of<Size>::value, {2});
    size.view().template as<Size>()[0] = static_cast<Size>(n_);
    size.view().template as<Size>()[1] = static_cast<Size>(k_);
    add_scales<Scale>(module + ".weight_scale", /*by_columns=*/false);
    if (with_zeros) {
      Buffer& zeros = add(module + ".weight_zero_point", DType::kI32, {(n_ + 7) / 8, groups()});
      for (Index n = 0; n < n_; ++n)
        for (Index g = 0; g < groups(); ++g)
          put(zeros, n / 8 * groups() + g, static_cast<int>(n % 8), zero(n, g));
    }
    if (with_index) add_index(module + ".weight_g_idx");
  }

  // Through a file, so that names, dtypes and shapes are those of a checkpoint.
  void expect_read_back(const io::QuantConfig& config, const std::string& module) const {
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       ("longspan_packed_" + std::to_string(::getpid()) + ".safetensors");
    std::vector<io::NamedTensor> tensors;
    for (const auto& [name, buffer] : buffers_) tensors.push_back({name, buffer.view()});
    io::write_safetensors(path, tensors);
    const io::TensorStore store(path);
    const io::LinearLayout layout = io::find_linear(store, config, module);
    ASSERT_EQ(layout.out_features, n_);
    ASSERT_EQ(layout.in_features, k_);
    for (const int num_threads : {1, 3}) {
      ThreadPool pool(num_threads);
      const QuantizedLinear linear = read_quantized(store, config, layout, pool);
      for (Index n = 0; n < n_; ++n)
        for (Index k = 0; k < k_; ++k)
          ASSERT_EQ(ops::dequantized(linear.part, n, k), value(n, k)) << "at " << n << ", " << k;
      expect_shape(shape_of_quantized(store, config, layout), linear.part);
    }
    std::filesystem::remove(path);
  }

 private:
  static void expect_shape(const ops::QuantizedPart& shape, const ops::QuantizedPart& part) {
    EXPECT_EQ(shape.kind, part.kind);
    EXPECT_EQ(shape.group_size, part.group_size);
    EXPECT_EQ(shape.scale_rows, part.scale_rows);
    for (const auto field : {&ops::QuantizedPart::codes, &ops::QuantizedPart::scales,
                             &ops::QuantizedPart::zeros, &ops::QuantizedPart::group_of}) {
      EXPECT_EQ((shape.*field).dtype, (part.*field).dtype);
      EXPECT_EQ((shape.*field).shape, (part.*field).shape);
      EXPECT_EQ((shape.*field).empty(), (part.*field).empty());
    }
  }
  void fit_group(const std::vector<float>& weights, Index n, Index g) {
    const auto own = [&](const auto& fn) {
      for (Index k = 0; k < k_; ++k)
        if (group_of_[static_cast<size_t>(k)] == g) fn(static_cast<size_t>(n * k_ + k));
    };
    float low = 0, high = 0;
    own([&](size_t i) {
      low = std::min(low, weights[i]);
      high = std::max(high, weights[i]);
    });
    const auto at = static_cast<size_t>(n * groups() + g);
    const float scale = static_cast<float>(bf16(std::max(high - low, 1e-6f) / 15.0f));
    scales_[at] = scale;
    zeros_[at] = std::clamp(static_cast<int>(std::lround(-low / scale)), 1, 15);
    own([&](size_t i) {
      codes_[i] = std::clamp(static_cast<int>(std::lround(weights[i] / scale)) + zeros_[at], 0, 15);
    });
  }
  int code(Index n, Index k) const { return codes_[static_cast<size_t>(n * k_ + k)]; }
  int zero(Index n, Index g) const { return zeros_[static_cast<size_t>(n * groups() + g)]; }
  Buffer& add(const std::string& name, DType dtype, Shape shape) {
    buffers_.emplace_back(name, Buffer(dtype, shape));
    return buffers_.back().second;
  }
  static void put(Buffer& words, Index word, int nibble, int code) {
    static_cast<uint32_t*>(words.data())[word] |= static_cast<uint32_t>(code) << (4 * nibble);
  }
  template <class Scale>
  void add_scales(const std::string& name, bool by_columns) {
    const Shape shape = by_columns ? Shape{groups(), n_} : Shape{n_, groups()};
    Buffer& scales = add(name, dtype_of<Scale>::value, shape);
    for (Index n = 0; n < n_; ++n)
      for (Index g = 0; g < groups(); ++g)
        scales.view().template as<Scale>()[by_columns ? g * n_ + n : n * groups() + g] =
            Scale(scales_[static_cast<size_t>(n * groups() + g)]);
  }
  void add_index(const std::string& name) {
    Buffer& index = add(name, DType::kI32, {k_});
    std::copy(group_of_.begin(), group_of_.end(), index.view().as<int32_t>());
  }

  std::mt19937 random_{7};
  Index n_;
  Index k_;
  Index group_size_;
  std::vector<int> codes_;                              // [n, k]
  std::vector<int> zeros_;                              // [n, groups]
  std::vector<float> scales_;                           // [n, groups]
  std::vector<int32_t> group_of_;                       // [k]
  std::deque<std::pair<std::string, Buffer>> buffers_;  // references stay
};

}  // namespace longspan::model
