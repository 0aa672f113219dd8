// Quantised weights of the CPU backend: prompt rows give the very bits of a dense weight with the same
// values, decode rows the product of the exact ones; neither depends on company. CTest runs this once an
// instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/backend.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/reference/backend.h"
#include "quantized_part.h"

namespace longspan::ops {
namespace {

constexpr Index kAllDecode = 1 << 20;

bool wanted_isa_exists() {
  const char* wanted = std::getenv("LONGSPAN_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return true;
  for (const cpu::GemmKernels& kernels : cpu::available_kernels())
    if (kernels.name == wanted) return true;
  return false;
}

Buffer product(Backend& backend, const TensorView& x, const Weight& weight, Index num_decode_rows,
               const TensorView& bias = {}) {
  Buffer out(x.dtype, {x.dim(0), weight.out_features});
  backend.matmul(
      {.x = x, .num_decode_rows = num_decode_rows, .weight = &weight, .bias = bias, .out = out.view()});
  return out;
}

template <class T>
class QuantizedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!wanted_isa_exists()) GTEST_SKIP() << "not on this machine: " << std::getenv("LONGSPAN_CPU_ISA");
    backend_ = cpu::make_backend({.num_threads = 2});
  }
  std::unique_ptr<Weight> pack(const std::vector<WeightPart>& parts) {
    return backend_->pack_quantized(parts, dtype_of<T>::value);
  }
  std::unique_ptr<Backend> backend_;
};

using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(QuantizedTest, Types);

TYPED_TEST(QuantizedTest, PromptRowsAreTheBitsOfTheDenseWeight) {
  using T = TypeParam;
  for (const PartSpec& spec : kForms) {
    const RandomPart part(spec);
    const Buffer dense = part.dense<T>();
    const TensorView rows[] = {dense.view()};
    const auto packed = this->pack({part.part()});
    const auto plain = this->backend_->pack(rows, dtype_of<T>::value);
    const Buffer bias = random_rows<float>(1, spec.n, 3);
    const TensorView bias_view(bias.data(), DType::kF32, {spec.n});
    for (const Index m : {1, 2, 31, 33, 100, 2100}) {
      const Buffer x = random_rows<T>(m, spec.k, 2);
      ASSERT_TRUE(same_bits(product(*this->backend_, x.view(), *packed, 0, bias_view),
                            product(*this->backend_, x.view(), *plain, 0, bias_view)))
          << form_text(spec) << " rows " << m;
    }
  }
}

TYPED_TEST(QuantizedTest, DecodeRowsAreTheExactProductRoundedOnce) {
  using T = TypeParam;
  for (const PartSpec& spec : kForms) {
    const RandomPart part(spec);
    const auto packed = this->pack({part.part()});
    const Buffer exact = part.dense<float>();
    const Buffer x = random_rows<T>(19, spec.k, 2);
    const Buffer out = product(*this->backend_, x.view(), *packed, kAllDecode);
    for (Index i = 0; i < 19; ++i)
      for (Index j = 0; j < spec.n; ++j) {
        double want = 0;
        double magnitude = 0;
        for (Index k = 0; k < spec.k; ++k) {
          const double term =
              static_cast<double>(static_cast<float>(x.view().template as<T>()[i * spec.k + k])) *
              static_cast<double>(exact.view().template as<float>()[j * spec.k + k]);
          want += term;
          magnitude += std::abs(term);
        }
        // Weights that decode unpacks to bf16 (permuted or uneven groups; FP8 where there is a matrix unit)
        // carry that rounding, too.
        const bool fused =
            spec.groups == Groups::kInOrder &&
            (spec.kind == CodeKind::kInt4 ? spec.group_size % 8 == 0
                                          : cpu::chosen_kernels().matrix_unit.multiply_codes == nullptr);
        const double of_weight = std::is_same_v<T, float> || fused ? 0 : 0x1p-9 * magnitude;
        const double of_result = std::is_same_v<T, float> ? 0 : std::abs(want) * 0x1p-8;
        ASSERT_NEAR(static_cast<float>(out.view().template as<T>()[i * spec.n + j]), want,
                    of_result + of_weight + 8e-6 * magnitude + 1e-30)
            << form_text(spec) << " at " << i << ", " << j;
      }
  }
}

TYPED_TEST(QuantizedTest, ARowHasTheSameBitsInAnyCompany) {
  using T = TypeParam;
  for (const PartSpec& spec : kForms) {
    const RandomPart part(spec);
    const Index num_rows = 70;
    const Buffer x = random_rows<T>(num_rows, spec.k, 2);
    const auto row_bytes = static_cast<size_t>(spec.n) * sizeof(T);
    for (const bool decode : {false, true}) {
      const auto packed = this->pack({part.part()});
      const Buffer all = product(*this->backend_, x.view(), *packed, decode ? kAllDecode : 0);
      for (const int num_threads : {1, 3}) {
        const auto backend = cpu::make_backend({.num_threads = num_threads});
        const WeightPart parts[] = {part.part()};
        const auto own = backend->pack_quantized(parts, dtype_of<T>::value);
        for (const Index m : {1, 2, 3, 4, 5, 7, 16, 17, 33}) {
          const Buffer some = product(*backend, x.view().rows(20, m), *own, decode ? kAllDecode : 0);
          ASSERT_EQ(std::memcmp(some.data(), static_cast<std::byte*>(all.data()) + 20 * row_bytes,
                                static_cast<size_t>(m) * row_bytes),
                    0)
              << form_text(spec) << " rows " << m << " threads " << num_threads << " decode " << decode;
        }
      }
    }
  }
}

// Decode rows first, prompt rows behind them: each as if alone.
TYPED_TEST(QuantizedTest, BothKindsOfRowsShareACall) {
  using T = TypeParam;
  const RandomPart part(kForms[0]);
  const auto packed = this->pack({part.part()});
  const Buffer x = random_rows<T>(50, kForms[0].k, 2);
  const Buffer mixed = product(*this->backend_, x.view(), *packed, 3);
  const Buffer decode = product(*this->backend_, x.view().rows(0, 3), *packed, 3);
  const Buffer prompt = product(*this->backend_, x.view().rows(3, 47), *packed, 0);
  EXPECT_EQ(std::memcmp(mixed.data(), decode.data(), decode.size_bytes()), 0);
  EXPECT_EQ(std::memcmp(static_cast<std::byte*>(mixed.data()) + decode.size_bytes(), prompt.data(),
                        prompt.size_bytes()),
            0);
}

// Quantised and dense parts, of every form, meeting inside panels.
TYPED_TEST(QuantizedTest, PartsStackAlongN) {
  using T = TypeParam;
  const Index k = 128;
  const RandomPart a({.n = 24, .k = k, .group_size = 32, .has_zeros = true}, 1);
  const RandomPart b({.n = 50, .k = k, .group_size = 128, .scale_dtype = DType::kF16}, 2);
  const Buffer c = random_rows<bf16>(6, k, 3);
  const RandomPart d({.n = 40, .k = k, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 8}, 4);
  const Buffer values[] = {a.dense<T>(), b.dense<T>(), d.dense<T>()};
  const TensorView dense[] = {values[0].view(), values[1].view(), c.view(), values[2].view()};
  const auto packed = this->pack({a.part(), b.part(), c.view(), d.part()});
  const auto plain = this->backend_->pack(dense, dtype_of<T>::value);
  ASSERT_EQ(packed->out_features, 120);
  const Buffer x = random_rows<T>(40, k, 5);
  EXPECT_TRUE(same_bits(product(*this->backend_, x.view(), *packed, 0),
                        product(*this->backend_, x.view(), *plain, 0)));
  // Decode differs in rounding only.
  const Buffer decode = product(*this->backend_, x.view(), *packed, kAllDecode);
  const Buffer prompt = product(*this->backend_, x.view(), *plain, 0);
  double difference = 0, norm = 0;
  for (Index i = 0; i < 40 * 120; ++i) {
    const double want = static_cast<float>(prompt.view().template as<T>()[i]);
    const double got = static_cast<float>(decode.view().template as<T>()[i]);
    difference += (got - want) * (got - want);
    norm += want * want;
  }
  EXPECT_LT(std::sqrt(difference / norm), (std::is_same_v<T, float> ? 1e-6 : 5e-3));
}

TYPED_TEST(QuantizedTest, SwiGluBehindTheProductChangesNoBit) {
  using T = TypeParam;
  for (const Index n : {16, 20, 48})
    for (const bool dense_up : {false, true}) {
      const Index k = 96;
      const RandomPart gate({.n = n, .k = k, .group_size = 32, .has_zeros = true}, 1);
      const RandomPart quantised_up({.n = n, .k = k, .group_size = 96, .scale_dtype = DType::kF16}, 2);
      const Buffer rows = random_rows<bf16>(n, k, 6);
      const WeightPart up = dense_up ? WeightPart(rows.view()) : WeightPart(quantised_up.part());
      const auto in_turns = this->backend_->pack_quantized_gate_up(gate.part(), up, dtype_of<T>::value);
      const auto gate_only = this->pack({gate.part()});
      const WeightPart up_parts[] = {up};
      const auto up_only = this->backend_->pack_quantized(up_parts, dtype_of<T>::value);
      for (const Index m : {1, 5, 33, 130})
        for (const Index num_decode_rows : {Index{0}, kAllDecode}) {
          const Buffer x = random_rows<T>(m, k, 3);
          const Buffer gates = product(*this->backend_, x.view(), *gate_only, num_decode_rows);
          const Buffer ups = product(*this->backend_, x.view(), *up_only, num_decode_rows);
          const Buffer both(dtype_of<T>::value, {m, 2 * n});
          for (Index i = 0; i < m; ++i) {
            std::memcpy(both.view().template as<T>() + i * 2 * n, gates.view().template as<T>() + i * n,
                        static_cast<size_t>(n) * sizeof(T));
            std::memcpy(both.view().template as<T>() + i * 2 * n + n, ups.view().template as<T>() + i * n,
                        static_cast<size_t>(n) * sizeof(T));
          }
          const Buffer want(dtype_of<T>::value, {m, n}), got(dtype_of<T>::value, {m, n});
          this->backend_->swiglu({.gate_up = both.view(), .out = want.view()});
          this->backend_->matmul_swiglu({.x = x.view(),
                                         .num_decode_rows = num_decode_rows,
                                         .weight = in_turns.get(),
                                         .gate_up = both.view(),
                                         .out = got.view()});
          ASSERT_TRUE(same_bits(got, want)) << "n " << n << " m " << m << " decode " << num_decode_rows;
        }
    }
}

TYPED_TEST(QuantizedTest, TheReferenceAgrees) {
  using T = TypeParam;
  const auto reference = reference::make_backend();
  for (const PartSpec& spec : kForms) {
    const RandomPart part(spec);
    const WeightPart parts[] = {part.part()};
    const auto plain = reference->pack_quantized(parts, DType::kF32);
    const auto packed = this->pack({part.part()});
    const Buffer x = random_rows<T>(3, spec.k, 2);
    const Buffer x32 = random_rows<float>(3, spec.k, 2);
    for (Index i = 0; i < 3 * spec.k; ++i)
      x32.view().template as<float>()[i] = static_cast<float>(x.view().template as<T>()[i]);
    const Buffer want = product(*reference, x32.view(), *plain, 0);
    const Buffer got = product(*this->backend_, x.view(), *packed, 0);
    double difference = 0, norm = 0;
    for (Index i = 0; i < 3 * spec.n; ++i) {
      const double w = want.view().template as<float>()[i];
      const double d = static_cast<float>(got.view().template as<T>()[i]) - w;
      difference += d * d;
      norm += w * w;
    }
    EXPECT_LT(std::sqrt(difference / norm), (std::is_same_v<T, float> ? 1e-6 : 6e-3)) << spec.n;
  }
}

// The memory plan asks before anything is packed.
TYPED_TEST(QuantizedTest, WhatAWeightWillTakeIsKnownBefore) {
  constexpr DType kDType = dtype_of<TypeParam>::value;
  const auto planned = [](std::span<const WeightPart> parts, Packing packing) {
    return cpu::packed_bytes(parts, packing, kDType).weight;
  };
  for (const PartSpec& spec : kForms) {
    const RandomPart part(spec);
    const WeightPart parts[] = {part.part(), part.part()};
    EXPECT_EQ(this->backend_->pack_quantized(parts, kDType)->size_bytes(), planned(parts, Packing::kStacked))
        << form_text(spec);
    EXPECT_EQ(this->backend_->pack_quantized_gate_up(parts[0], parts[1], kDType)->size_bytes(),
              planned(parts, Packing::kGateUp))
        << form_text(spec);
  }
  const Buffer rows = random_rows<bf16>(37, 75, 1);
  const RandomPart beside({.n = 44, .k = 75, .group_size = 32});
  const WeightPart mixed[] = {rows.view(), beside.part()};
  EXPECT_EQ(this->pack({mixed[0], mixed[1]})->size_bytes(), planned(mixed, Packing::kStacked));
  const TensorView dense[] = {rows.view(), rows.view()};
  const WeightPart dense_parts[] = {dense[0], dense[1]};
  EXPECT_EQ(this->backend_->pack(dense, kDType)->size_bytes(), planned(dense_parts, Packing::kStacked));
  EXPECT_EQ(this->backend_->pack_gate_up(dense[0], dense[1], kDType)->size_bytes(),
            planned(dense_parts, Packing::kGateUp));
}

// 4 bits a value and 16 or 24 a group, one panel's padding aside.
TYPED_TEST(QuantizedTest, StaysPackedInMemory) {
  const RandomPart part(
      {.n = 160, .k = 1024, .group_size = 128, .scale_dtype = DType::kF16, .has_zeros = true});
  EXPECT_EQ(this->pack({part.part()})->size_bytes(), 160 * (1024 / 2 + 8 * 3));
}

}  // namespace
}  // namespace longspan::ops
