#include "model/quantized_random.h"

#include <cstring>

#include "model/random_bits.h"

namespace longspan::model {
namespace {

constexpr float kCodeDeviation = 4.61f;               // of 0 .. 15
constexpr float kFp8Deviation = 0.59f;                // of the codes below 2
constexpr uint64_t kFp8Mask = 0xbfbfbfbfbfbfbfbfull;  // leaves those

enum class Plane : uint64_t { kCodes = 1, kScales, kZeros };

// Draws the planes of one layer into memory that it keeps.
class Draw {
 public:
  explicit Draw(uint64_t key) : key_(key) {}

  TensorView bytes(Plane plane, DType dtype, Shape shape, uint64_t mask) {
    const TensorView view = allocate(dtype, shape);
    const size_t size = view.size_bytes();
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
      const uint64_t word = at(plane, i) & mask;
      std::memcpy(static_cast<char*>(view.data) + i, &word, std::min(sizeof(word), size - i));
    }
    return view;
  }
  TensorView scales(DType dtype, Shape shape, float mean) {  // within a quarter of it
    const TensorView view = allocate(dtype, shape);
    dispatch_dtype(dtype, [&]<class T>() {
      for (Index i = 0; i < shape.num_elements(); ++i) {
        const auto share = static_cast<float>(at(Plane::kScales, static_cast<uint64_t>(i)) >> 40) * 0x1p-24f;
        view.as<T>()[i] = static_cast<T>(mean * (0.75f + 0.5f * share));
      }
    });
    return view;
  }
  TensorView zeros(Shape shape) {  // 7 .. 9
    const TensorView view = allocate(DType::kU8, shape);
    for (Index i = 0; i < shape.num_elements(); ++i)
      view.as<uint8_t>()[i] = static_cast<uint8_t>(7 + at(Plane::kZeros, static_cast<uint64_t>(i)) % 3);
    return view;
  }
  std::vector<Buffer> take() { return std::move(owned_); }

 private:
  uint64_t at(Plane plane, uint64_t place) const {
    return random_bits(random_bits(key_ ^ static_cast<uint64_t>(plane)) + place);
  }
  TensorView allocate(DType dtype, Shape shape) {
    owned_.emplace_back(dtype, shape);
    return owned_.back().view();
  }

  uint64_t key_;
  std::vector<Buffer> owned_;
};

Index parts_of(Index whole, Index part) { return (whole + part - 1) / part; }

}  // namespace

QuantizedLinear random_quantized(uint64_t key, const io::QuantConfig& config, Index out_features,
                                 Index in_features, float deviation) {
  const bool fp8 = config.method == io::QuantMethod::kFp8 && config.block[0] > 0 && config.block[1] > 0;
  const bool int4 = config.bits == 4 &&
                    (config.method == io::QuantMethod::kAwq || config.method == io::QuantMethod::kGptq ||
                     config.method == io::QuantMethod::kCompressedTensors);
  if (!fp8 && !int4)
    fail(ErrorKind::kUnsupported,
         "{}: random weights of method {} with {} bits: need awq, gptq or compressed-tensors with 4 bits, or "
         "fp8 "
         "in blocks",
         config.source, config.method_name, config.bits);
  Draw draw(key);
  ops::QuantizedPart part{.out_features = out_features, .in_features = in_features};
  if (fp8) {
    part.kind = ops::CodeKind::kE4M3;
    part.scale_rows = config.block[0];
    part.group_size = config.block[1];
    part.codes = draw.bytes(Plane::kCodes, DType::kF8E4M3, {out_features, in_features}, kFp8Mask);
    part.scales = draw.scales(
        DType::kF32, {parts_of(out_features, part.scale_rows), parts_of(in_features, part.group_size)},
        deviation / kFp8Deviation);
  } else {
    part.group_size = config.group_size > 0 ? config.group_size : in_features;
    const Shape groups{out_features, parts_of(in_features, part.group_size)};
    part.codes =
        draw.bytes(Plane::kCodes, DType::kU8, {out_features, parts_of(in_features, 2)}, ~uint64_t{0});
    part.scales = draw.scales(DType::kF16, groups, deviation / kCodeDeviation);
    if (!config.symmetric) part.zeros = draw.zeros(groups);
  }
  return {.part = part, .owned = draw.take()};
}

}  // namespace longspan::model
