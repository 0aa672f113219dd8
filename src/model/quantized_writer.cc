#include "model/quantized_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "model/packed_words.h"

namespace longspan::model {
namespace {

constexpr int kMaxCode = 15;
constexpr int kMiddle = 8;

struct Affine {
  float scale;
  int zero;
};

// Scale and zero of one group before rounding the scale: symmetric spreads the largest magnitude over half
// the range of fifteen steps, as compressed-tensors does; otherwise the range includes zero.
Affine fit(std::span<const float> values, bool symmetric) {
  const auto [low_at, high_at] = std::minmax_element(values.begin(), values.end());
  const float low = std::min(*low_at, 0.0f);
  const float high = std::max(*high_at, 0.0f);
  if (symmetric) return {std::max(-low, high) / 7.5f, kMiddle};
  return {(high - low) / static_cast<float>(kMaxCode), -1};
}

// With the scale as it is stored.
template <class Scale>
Affine stored(Affine affine, std::span<const float> values) {
  affine.scale = static_cast<float>(Scale(affine.scale));
  if (!(affine.scale > 0)) return {static_cast<float>(Scale(1.0f)), kMiddle};  // zeros, or too small to tell
  if (affine.zero < 0) {
    const float low = std::min(*std::min_element(values.begin(), values.end()), 0.0f);
    affine.zero = std::clamp(static_cast<int>(std::lrint(-low / affine.scale)), 0, kMaxCode);
  }
  return affine;
}

void put(Buffer& words, Index word, int shift, int code) {
  words.view().as<int32_t>()[word] = static_cast<int32_t>(
      static_cast<uint32_t>(words.view().as<int32_t>()[word]) | static_cast<uint32_t>(code) << shift);
}

class Writer {
 public:
  Writer(const TensorView& weight, const QuantizeOptions& options)
      : weight_(weight),
        options_(options),
        n_(weight.dim(0)),
        k_(weight.dim(1)),
        groups_(k_ / options.group_size) {
    if (options.layout == PackedLayout::kAwq) {
      out_.tensors.push_back({".qweight", Buffer(DType::kI32, {k_, n_ / kPerWord})});
      out_.tensors.push_back({".scales", Buffer(DType::kF16, {groups_, n_})});
      out_.tensors.push_back({".qzeros", Buffer(DType::kI32, {groups_, n_ / kPerWord})});
    } else {
      out_.tensors.push_back({".weight_packed", Buffer(DType::kI32, {n_, words_for(k_)})});
      out_.tensors.push_back({".weight_scale", Buffer(DType::kBF16, {n_, groups_})});
      out_.tensors.push_back({".weight_shape", Buffer(DType::kI64, {2})});
      shape()[0] = n_;
      shape()[1] = k_;
      if (!options.symmetric)
        out_.tensors.push_back({".weight_zero_point", Buffer(DType::kI32, {words_for(n_), groups_})});
    }
  }

  // A task has the rows that may share a word; their errors are added up in the order of the rows.
  PackedLinear write(ThreadPool& pool) {
    std::vector<Errors> errors(static_cast<size_t>(words_for(n_)));
    pool.parallel_for(words_for(n_), [&](int64_t task, int) {
      Errors own;
      std::vector<float> values(static_cast<size_t>(options_.group_size));
      for (Index n = task * kPerWord; n < std::min(n_, (task + 1) * kPerWord); ++n)
        for (Index g = 0; g < groups_; ++g) write_group(n, g, values, own);
      errors[static_cast<size_t>(task)] = own;
    });
    for (const Errors& of : errors) {
      out_.squared_error += of.squared_error;
      out_.squared_norm += of.squared_norm;
      out_.largest_error = std::max(out_.largest_error, of.largest);
    }
    return std::move(out_);
  }

 private:
  struct Errors {
    double squared_error = 0;
    double squared_norm = 0;
    float largest = 0;

    void count(float value, float packed) {
      const float error = value - packed;
      squared_error += static_cast<double>(error) * static_cast<double>(error);
      squared_norm += static_cast<double>(value) * static_cast<double>(value);
      largest = std::max(largest, std::abs(error));
    }
  };

  void write_group(Index n, Index g, std::span<float> values, Errors& errors) {
    read_group(n, g, values);
    const Affine raw = fit(values, options_.symmetric);
    const Affine affine =
        options_.layout == PackedLayout::kAwq ? stored<f16>(raw, values) : stored<bf16>(raw, values);
    put_group(n, g, affine);
    for (Index i = 0; i < options_.group_size; ++i) {
      const float value = values[static_cast<size_t>(i)];
      const int code =
          std::clamp(static_cast<int>(std::lrint(value / affine.scale)) + affine.zero, 0, kMaxCode);
      put_code(n, g * options_.group_size + i, code);
      errors.count(value, static_cast<float>(code - affine.zero) * affine.scale);
    }
  }

  Buffer& buffer(size_t i) { return out_.tensors[i].buffer; }
  int64_t* shape() { return buffer(2).view().as<int64_t>(); }

  void read_group(Index n, Index g, std::span<float> values) const {
    dispatch_dtype(weight_.dtype, [&]<class T>() {
      const T* from = weight_.as<T>() + n * weight_.stride(0) + g * options_.group_size;
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(from[i]);
    });
  }

  void put_code(Index n, Index k, int code) {
    if (options_.layout == PackedLayout::kAwq)
      put(buffer(0), k * (n_ / kPerWord) + n / kPerWord, kAwqShift[n % kPerWord], code);
    else
      put(buffer(0), n * words_for(k_) + k / kPerWord, 4 * static_cast<int>(k % kPerWord), code);
  }

  void put_group(Index n, Index g, Affine affine) {
    if (options_.layout == PackedLayout::kAwq) {
      buffer(1).view().as<f16>()[g * n_ + n] = f16(affine.scale);
      put(buffer(2), g * (n_ / kPerWord) + n / kPerWord, kAwqShift[n % kPerWord], affine.zero);
    } else {
      buffer(1).view().as<bf16>()[n * groups_ + g] = bf16(affine.scale);
      if (!options_.symmetric)
        put(buffer(3), n / kPerWord * groups_ + g, 4 * static_cast<int>(n % kPerWord), affine.zero);
    }
  }

  const TensorView& weight_;
  const QuantizeOptions& options_;
  const Index n_;
  const Index k_;
  const Index groups_;
  PackedLinear out_;
};

}  // namespace

double PackedLinear::relative_error() const {
  return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0;
}

bool can_quantize(Index out_features, Index in_features, const QuantizeOptions& options) {
  return in_features % options.group_size == 0 &&
         (options.layout != PackedLayout::kAwq || out_features % kPerWord == 0);
}

PackedLinear quantize(const TensorView& weight, const QuantizeOptions& options, ThreadPool& pool) {
  CHECK_MSG(can_quantize(weight.dim(0), weight.dim(1), options), "[quantize] {}: got groups of {}",
            to_string(weight), options.group_size);
  return Writer(weight, options).write(pool);
}

}  // namespace longspan::model
