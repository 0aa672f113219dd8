#include "model/quantized_random.h"

#include <algorithm>
#include <cstring>

#include "model/random_bits.h"

namespace longspan::model {
namespace {

constexpr float kCodeDeviation = 4.61f;               // of 0 .. 15
constexpr float kFp8Deviation = 0.59f;                // of the codes below 2
constexpr uint64_t kFp8Mask = 0xbfbfbfbfbfbfbfbfull;  // leaves those

enum class Plane : uint64_t { kCodes = 1, kScales, kZeros };

// Draws the planes of one layer into memory that it keeps. A plane's shape is that of a view without values.
class Draw {
 public:
  Draw(uint64_t key, ThreadPool& pool) : key_(key), pool_(pool) {}

  TensorView bytes(Plane plane, const TensorView& shape, uint64_t mask) {
    constexpr Index kWord = sizeof(uint64_t);
    const TensorView view = allocate(shape);
    const auto size = static_cast<Index>(view.size_bytes());
    pool_.parallel_ranges(size, kWord * kDrawsOfATask, [&](Index begin, Index end) {
      for (Index i = begin; i < end; i += kWord) {
        const uint64_t word = at(plane, i) & mask;
        std::memcpy(static_cast<char*>(view.data) + i, &word, static_cast<size_t>(std::min(kWord, end - i)));
      }
    });
    return view;
  }
  TensorView scales(const TensorView& shape, float mean) {  // within a quarter of it
    const TensorView view = allocate(shape);
    dispatch_dtype(view.dtype, [&]<class T>() {
      pool_.parallel_ranges(view.num_elements(), kDrawsOfATask, [&](Index begin, Index end) {
        for (Index i = begin; i < end; ++i) {
          const auto share = static_cast<float>(at(Plane::kScales, i) >> 40) * 0x1p-24f;
          view.as<T>()[i] = static_cast<T>(mean * (0.75f + 0.5f * share));
        }
      });
    });
    return view;
  }
  TensorView zeros(const TensorView& shape) {  // 7 .. 9
    const TensorView view = allocate(shape);
    pool_.parallel_ranges(view.num_elements(), kDrawsOfATask, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i)
        view.as<uint8_t>()[i] = static_cast<uint8_t>(7 + at(Plane::kZeros, i) % 3);
    });
    return view;
  }
  std::vector<Buffer> take() { return std::move(owned_); }

 private:
  static constexpr Index kDrawsOfATask = 1 << 14;

  uint64_t at(Plane plane, Index place) const {
    return random_bits(random_bits(key_ ^ static_cast<uint64_t>(plane)) + static_cast<uint64_t>(place));
  }
  TensorView allocate(const TensorView& shape) {
    owned_.emplace_back(shape.dtype, shape.shape);
    return owned_.back().view();
  }

  uint64_t key_;
  ThreadPool& pool_;
  std::vector<Buffer> owned_;
};

bool is_block_fp8(const io::QuantConfig& config) {
  return config.method == io::QuantMethod::kFp8 && config.block[0] > 0 && config.block[1] > 0;
}

Index parts_of(Index whole, Index part) { return (whole + part - 1) / part; }

}  // namespace

bool can_draw(const io::QuantConfig& config) {
  const bool int4 = config.bits == 4 &&
                    (config.method == io::QuantMethod::kAwq || config.method == io::QuantMethod::kGptq ||
                     config.method == io::QuantMethod::kCompressedTensors);
  return int4 || is_block_fp8(config);
}

ops::QuantizedPart shape_of_random(const io::QuantConfig& config, Index out_features, Index in_features) {
  if (!can_draw(config))
    fail(ErrorKind::kUnsupported,
         "{}: random weights of method {} with {} bits: need awq, gptq or compressed-tensors with 4 bits, or "
         "fp8 in blocks",
         config.source, config.method_name, config.bits);
  ops::QuantizedPart part{.out_features = out_features, .in_features = in_features};
  if (is_block_fp8(config)) {
    part.kind = ops::CodeKind::kE4M3;
    part.scale_rows = config.block[0];
    part.group_size = config.block[1];
    part.codes = shape_only(DType::kF8E4M3, {out_features, in_features});
    part.scales = shape_only(
        DType::kF32, {parts_of(out_features, part.scale_rows), parts_of(in_features, part.group_size)});
  } else {
    part.group_size = config.group_size > 0 ? config.group_size : in_features;
    const Shape groups{out_features, parts_of(in_features, part.group_size)};
    part.codes = shape_only(DType::kU8, {out_features, parts_of(in_features, 2)});
    part.scales = shape_only(DType::kF16, groups);
    if (!config.symmetric) part.zeros = shape_only(DType::kU8, groups);
  }
  return part;
}

QuantizedLinear random_quantized(uint64_t key, const io::QuantConfig& config, Index out_features,
                                 Index in_features, float deviation, ThreadPool& pool) {
  ops::QuantizedPart part = shape_of_random(config, out_features, in_features);
  const bool fp8 = part.kind == ops::CodeKind::kE4M3;
  Draw draw(key, pool);
  part.codes = draw.bytes(Plane::kCodes, part.codes, fp8 ? kFp8Mask : ~uint64_t{0});
  part.scales = draw.scales(part.scales, deviation / (fp8 ? kFp8Deviation : kCodeDeviation));
  if (!part.zeros.empty()) part.zeros = draw.zeros(part.zeros);
  return {.part = part, .owned = draw.take()};
}

}  // namespace longspan::model
