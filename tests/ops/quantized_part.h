// Random quantised parts of a weight, with the memory they point to.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/dequantize.h"

namespace longspan::ops {

enum class Groups : uint8_t {
  kInOrder,    // k / group_size
  kShuffled,   // as many codes each, in any order along K: GPTQ's activation order
  kScattered,  // any for each k, some larger than group_size
};

struct PartSpec {
  Index n = 0;
  Index k = 0;
  Index group_size = 0;
  CodeKind kind = CodeKind::kInt4;
  DType scale_dtype = DType::kBF16;
  bool has_zeros = false;
  Groups groups = Groups::kInOrder;
  Index scale_rows = 1;
};

class RandomPart {
 public:
  explicit RandomPart(const PartSpec& spec, uint32_t seed = 1) : random_(seed) {
    const Index groups = (spec.k + spec.group_size - 1) / spec.group_size;
    const bool int4 = spec.kind == CodeKind::kInt4;
    part_ = {
        .kind = spec.kind,
        .out_features = spec.n,
        .in_features = spec.k,
        .group_size = spec.group_size,
        .scale_rows = spec.scale_rows,
        .codes = allocate(int4 ? DType::kU8 : DType::kF8E4M3, {spec.n, int4 ? (spec.k + 1) / 2 : spec.k}),
        .scales = allocate(spec.scale_dtype, {(spec.n + spec.scale_rows - 1) / spec.scale_rows, groups})};
    fill_bytes(part_.codes, [&] {
      auto code = static_cast<uint8_t>(random_());
      return !int4 && (code & 0x7f) == 0x7f ? uint8_t{1} : code;  // no NaN
    });
    std::uniform_real_distribution<float> scale(0.01f, 0.1f);
    dispatch_dtype(spec.scale_dtype, [&]<class T>() {
      for (Index i = 0; i < part_.scales.num_elements(); ++i)
        part_.scales.as<T>()[i] = T(int4 ? scale(random_) : scale(random_) / 64);
    });
    if (spec.has_zeros) {
      part_.zeros = allocate(DType::kU8, {spec.n, groups});
      fill_bytes(part_.zeros, [&] { return static_cast<uint8_t>(random_() % 17); });
    }
    if (spec.groups == Groups::kInOrder) return;
    part_.group_of = allocate(DType::kI32, {spec.k});
    int32_t* const group_of = part_.group_of.as<int32_t>();
    for (Index k = 0; k < spec.k; ++k)
      group_of[k] = static_cast<int32_t>(
          spec.groups == Groups::kShuffled ? k / spec.group_size : random_() % static_cast<uint32_t>(groups));
    if (spec.groups == Groups::kShuffled) std::shuffle(group_of, group_of + spec.k, random_);
  }

  const QuantizedPart& part() const { return part_; }
  // [n, k] of T: what the part stands for, rounded once.
  template <class T>
  Buffer dense() const {
    Buffer buffer(dtype_of<T>::value, {part_.out_features, part_.in_features});
    for (Index n = 0; n < part_.out_features; ++n)
      for (Index k = 0; k < part_.in_features; ++k)
        buffer.view().as<T>()[n * part_.in_features + k] = T(dequantized(part_, n, k));
    return buffer;
  }

 private:
  TensorView allocate(DType dtype, Shape shape) {
    owned_.emplace_back(dtype, shape);
    return owned_.back().view();
  }
  template <class Fn>
  static void fill_bytes(const TensorView& view, const Fn& next) {
    for (size_t i = 0; i < view.size_bytes(); ++i) static_cast<uint8_t*>(view.data)[i] = next();
  }

  std::mt19937 random_;
  std::vector<Buffer> owned_;
  QuantizedPart part_;
};

}  // namespace longspan::ops
