// Random quantised parts of a weight, with the memory they point to, and what tests of their products share.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
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

// Every form a checkpoint can have, on shapes that fill panels, words, blocks of codes and groups and ones
// that do not.
inline const PartSpec kForms[] = {
    {.n = 64, .k = 256, .group_size = 128, .scale_dtype = DType::kF16, .has_zeros = true},
    {.n = 48, .k = 128, .group_size = 32, .has_zeros = true},
    {.n = 35, .k = 1280, .group_size = 64},
    {.n = 40, .k = 96, .group_size = 96, .scale_dtype = DType::kF32},
    {.n = 17, .k = 75, .group_size = 32, .has_zeros = true},
    {.n = 19, .k = 41, .group_size = 5, .has_zeros = true},
    {.n = 33,
     .k = 128,
     .group_size = 32,
     .scale_dtype = DType::kF16,
     .has_zeros = true,
     .groups = Groups::kScattered},
    {.n = 80, .k = 160, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 32},
    {.n = 37,
     .k = 131,
     .group_size = 64,
     .kind = CodeKind::kE4M3,
     .scale_dtype = DType::kF32,
     .scale_rows = 16},
    {.n = 41, .k = 2100, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 128},
    {.n = 40,
     .k = 384,
     .group_size = 128,
     .kind = CodeKind::kE4M3,
     .scale_dtype = DType::kF32,
     .scale_rows = 16},
    {.n = 22,
     .k = 531,
     .group_size = 48,
     .kind = CodeKind::kE4M3,
     .scale_dtype = DType::kF16,
     .scale_rows = 5},
    {.n = 9, .k = 77, .group_size = 20, .kind = CodeKind::kE4M3, .scale_rows = 3},
    {.n = 24, .k = 1032, .group_size = 1032, .scale_dtype = DType::kF16},
    {.n = 29, .k = 640, .group_size = 128, .has_zeros = true, .groups = Groups::kShuffled},
    {.n = 18, .k = 339, .group_size = 64, .scale_dtype = DType::kF32, .groups = Groups::kShuffled},
    {.n = 13,
     .k = 150,
     .group_size = 32,
     .kind = CodeKind::kE4M3,
     .groups = Groups::kShuffled,
     .scale_rows = 4},
    {.n = 101, .k = 1224, .group_size = 128, .has_zeros = true},  // tiles for every unit of the emulator
    {.n = 32, .k = 192, .group_size = 64},
    {.n = 160, .k = 1024, .group_size = 1024, .scale_dtype = DType::kF16},
    {.n = 9, .k = 5120, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 3},  // longer than any ring
};

inline std::string form_text(const PartSpec& spec) {
  return fmt::format("N {} K {} group {}", spec.n, spec.k, spec.group_size);
}

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

template <class T>
Buffer random_rows(Index rows, Index cols, uint32_t seed = 2) {
  Buffer buffer(dtype_of<T>::value, {rows, cols});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (Index i = 0; i < rows * cols; ++i) buffer.view().as<T>()[i] = T(normal(random));
  return buffer;
}

inline bool same_bits(const Buffer& a, const Buffer& b) {
  return a.size_bytes() == b.size_bytes() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace longspan::ops
