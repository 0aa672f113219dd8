// Quantised weights on a device: prompt rows give the bits of a dense weight with the same values, decode
// rows the product of the exact ones; neither depends on company, schedule or the size of the workspace.
#include <cmath>
#include <cstring>

#include "device/devices.h"
#include "quantized_part.h"

namespace longspan::ops::test {
namespace {

constexpr Index kAll = 1 << 20;

Buffer product(Backend& backend, const TensorView& x, const Weight& weight, Index num_decode_rows,
               const TensorView& bias = {}) {
  Buffer out(x.dtype, {x.dim(0), weight.out_features});
  backend.matmul({.x = x,
                  .num_decode_rows = std::min(num_decode_rows, x.dim(0)),
                  .weight = &weight,
                  .bias = bias,
                  .out = out.view()});
  return out;
}

template <class T>
class DeviceQuantized : public testing::Test {
 protected:
  static std::unique_ptr<Weight> pack(Backend& backend, const std::vector<WeightPart>& parts) {
    return backend.pack_quantized(parts, dtype_of<T>::value);
  }
};
using Types = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(DeviceQuantized, Types);

TYPED_TEST(DeviceQuantized, PromptRowsAreTheBitsOfTheDenseWeight) {
  using T = TypeParam;
  for (StagedBackend* device : devices())
    for (const PartSpec& spec : kForms) {
      const RandomPart part(spec);
      const Buffer dense = part.dense<T>();
      const TensorView rows[] = {dense.view()};
      const auto packed = this->pack(*device, {part.part()});
      const auto plain = device->pack(rows, dtype_of<T>::value);
      const Buffer bias = random_rows<float>(1, spec.n, 3);
      for (const Index m : {1, 33}) {
        const Buffer x = random_rows<T>(m, spec.k);
        const TensorView bias_view = m == 1 ? TensorView(bias.data(), DType::kF32, {spec.n}) : TensorView();
        EXPECT_TRUE(same_bits(product(*device, x.view(), *packed, 0, bias_view),
                              product(*device, x.view(), *plain, 0, bias_view)))
            << device->name() << " " << form_text(spec) << " rows " << m;
      }
    }
}

TYPED_TEST(DeviceQuantized, DecodeRowsAreTheExactProductRoundedOnce) {
  using T = TypeParam;
  constexpr Index kRows = 19;
  for (StagedBackend* device : devices())
    for (const PartSpec& spec : kForms) {
      const RandomPart part(spec);
      const auto packed = this->pack(*device, {part.part()});
      const Buffer exact = part.dense<float>();
      const Buffer x = random_rows<T>(kRows, spec.k);
      const Buffer out = product(*device, x.view(), *packed, kAll);
      const double step = std::is_same_v<T, float> ? 0 : std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-11;
      for (Index i = 0; i < kRows; ++i)
        for (Index j = 0; j < spec.n; ++j) {
          double want = 0, magnitude = 0;
          for (Index k = 0; k < spec.k; ++k) {
            const double term =
                static_cast<double>(static_cast<float>(x.view().template as<T>()[i * spec.k + k])) *
                static_cast<double>(exact.view().template as<float>()[j * spec.k + k]);
            want += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(static_cast<float>(out.view().template as<T>()[i * spec.n + j]), want,
                      std::abs(want) * step + 8e-6 * magnitude + 1e-30)
              << device->name() << " " << form_text(spec) << " at " << i << ", " << j;
        }
    }
}

TYPED_TEST(DeviceQuantized, ARowHasTheSameBitsInAnyCompany) {
  using T = TypeParam;
  for (StagedBackend* device : devices())
    for (const size_t form : {0, 4, 6, 7, 9, 13, 14, 15, 16, 19}) {
      const PartSpec& spec = kForms[form];
      const RandomPart part(spec);
      const auto packed = this->pack(*device, {part.part()});
      const Buffer x = random_rows<T>(70, spec.k);
      const auto row_bytes = static_cast<size_t>(spec.n) * sizeof(T);
      const auto expect_same = [&](Index num_decode, const std::vector<Index>& counts) {
        const Buffer all = product(*device, x.view(), *packed, num_decode);
        for (const Index m : counts) {
          const Index first = 70 - m;
          const Buffer some = product(*device, x.view().rows(first, m), *packed, num_decode);
          EXPECT_EQ(std::memcmp(some.data(),
                                static_cast<const char*>(all.data()) + static_cast<size_t>(first) * row_bytes,
                                static_cast<size_t>(m) * row_bytes),
                    0)
              << device->name() << " " << form_text(spec) << " rows " << m;
        }
      };
      expect_same(kAll, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 70});
      if (form <= 6) expect_same(0, {1, 2, 3, 5, 8, 9, 16, 17, 33, 70});  // the dense product's business
      // Both kinds of rows in one call.
      const Buffer mixed = product(*device, x.view(), *packed, 5);
      const Buffer decode = product(*device, x.view().rows(0, 5), *packed, kAll);
      EXPECT_EQ(std::memcmp(mixed.data(), decode.data(), decode.size_bytes()), 0);
      const Buffer prompt = product(*device, x.view().rows(5, 65), *packed, 0);
      EXPECT_EQ(std::memcmp(static_cast<const char*>(mixed.data()) + decode.size_bytes(), prompt.data(),
                            prompt.size_bytes()),
                0);
    }
}

TYPED_TEST(DeviceQuantized, PartsOfSeveralFormsStandSideBySide) {
  using T = TypeParam;
  const RandomPart first({.n = 24, .k = 160, .group_size = 32, .has_zeros = true}, 1);
  const RandomPart second({.n = 40, .k = 160, .group_size = 32, .has_zeros = true}, 2);  // one with the first
  const Buffer dense = random_rows<T>(12, 160, 5);
  const RandomPart third({.n = 20, .k = 160, .group_size = 64, .scale_dtype = DType::kF16}, 3);
  const RandomPart fourth({.n = 16, .k = 160, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 16},
                          4);
  const PartSpec shuffled{.n = 24, .k = 160, .group_size = 32, .groups = Groups::kShuffled};
  const RandomPart fifth(shuffled, 5), sixth(shuffled, 6);
  QuantizedPart one_with_fifth = sixth.part();
  one_with_fifth.group_of = fifth.part().group_of;
  for (StagedBackend* device : devices()) {
    const std::vector<WeightPart> parts{first.part(),  second.part(), dense.view(),   third.part(),
                                        fourth.part(), fifth.part(),  one_with_fifth, sixth.part()};
    const auto together = this->pack(*device, parts);
    ASSERT_EQ(together->out_features, 184);
    for (const Index num_decode : {kAll, Index{0}}) {
      const Buffer x = random_rows<T>(7, 160);
      const Buffer out = product(*device, x.view(), *together, num_decode);
      Index column = 0;
      for (const WeightPart& part : parts) {
        const Buffer alone = product(*device, x.view(), *this->pack(*device, {part}), num_decode);
        const Index n = out_features_of(part);
        for (Index i = 0; i < 7; ++i)
          EXPECT_EQ(std::memcmp(out.view().template as<T>() + i * 184 + column,
                                alone.view().template as<T>() + i * n, static_cast<size_t>(n) * sizeof(T)),
                    0)
              << device->name() << " column " << column << " row " << i;
        column += n;
      }
    }
  }
}

TYPED_TEST(DeviceQuantized, GateAndUpGiveTheBitsOfBothSteps) {
  using T = TypeParam;
  constexpr Index kRows = 21;
  for (const PartSpec& spec :
       {PartSpec{.n = 24, .k = 128, .group_size = 64},
        PartSpec{.n = 72, .k = 640, .group_size = 128, .has_zeros = true},
        PartSpec{.n = 16, .k = 416, .group_size = 32, .scale_dtype = DType::kF16},
        PartSpec{.n = 20, .k = 256, .group_size = 128},  // no whole eights: two steps
        PartSpec{.n = 24, .k = 256, .group_size = 128, .groups = Groups::kShuffled},
        PartSpec{.n = 32, .k = 1280, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 32},
        PartSpec{.n = 20, .k = 384, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 4}}) {
    const RandomPart gate(spec, 1), other(spec, 2);
    QuantizedPart up = other.part();
    up.group_of = gate.part().group_of;
    const WeightPart stacked[] = {gate.part(), up};
    const Buffer x = random_rows<T>(kRows, spec.k);
    for (StagedBackend* device : devices()) {
      const auto weight = device->pack_quantized_gate_up(gate.part(), up, dtype_of<T>::value);
      const auto plain = device->pack_quantized(stacked, dtype_of<T>::value);
      for (const Index num_decode : {1, 4, 9, 16, 19}) {
        const Buffer gate_up = product(*device, x.view(), *plain, num_decode);
        EXPECT_TRUE(same_bits(product(*device, x.view(), *weight, num_decode), gate_up))
            << device->name() << " " << form_text(spec) << " decode rows " << num_decode;
        Buffer want(dtype_of<T>::value, {kRows, spec.n}), got(dtype_of<T>::value, {kRows, spec.n}),
            room(dtype_of<T>::value, {kRows, 2 * spec.n});
        device->swiglu({.gate_up = gate_up.view(), .out = want.view()});
        device->matmul_swiglu({.x = x.view(),
                               .num_decode_rows = num_decode,
                               .weight = weight.get(),
                               .gate_up = room.view(),
                               .out = got.view()});
        EXPECT_TRUE(same_bits(got, want))
            << device->name() << " " << form_text(spec) << " decode rows " << num_decode;
      }
    }
  }
}

// Few dense rows behind quantised ones share their launch; bias, prompt rows and many rows do not change
// that.
TYPED_TEST(DeviceQuantized, ANarrowPartGivesTheBitsItHasAlone) {
  using T = TypeParam;
  constexpr Index kNarrow = 24, kRows = 21;
  for (const PartSpec& spec :
       {PartSpec{.n = 96, .k = 640, .group_size = 128, .has_zeros = true},
        PartSpec{.n = 16, .k = 416, .group_size = 32},
        PartSpec{.n = 160, .k = 1280, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 32},
        PartSpec{.n = 33, .k = 640, .group_size = 128, .groups = Groups::kShuffled}}) {
    const RandomPart part(spec);
    const Buffer narrow = random_rows<T>(kNarrow, spec.k, 5);
    const Buffer x = random_rows<T>(kRows, spec.k), bias = random_rows<float>(1, spec.n + kNarrow, 3);
    const auto bias_of = [&](Index column, Index count) {
      return TensorView(bias.view().as<float>() + column, DType::kF32, {count});
    };
    for (StagedBackend* device : devices()) {
      const auto together = this->pack(*device, {part.part(), narrow.view()});
      const auto wide = this->pack(*device, {part.part()});
      const TensorView dense[] = {narrow.view()};
      const auto alone = device->pack(dense, dtype_of<T>::value);
      for (const Index num_decode : {0, 1, 8, 9, 16, 19, 21}) {
        const Buffer out = product(*device, x.view(), *together, num_decode, bias_of(0, spec.n + kNarrow));
        const Buffer first = product(*device, x.view(), *wide, num_decode, bias_of(0, spec.n));
        const Buffer second = product(*device, x.view(), *alone, num_decode, bias_of(spec.n, kNarrow));
        const auto row_of = [&](const Buffer& rows, Index i, Index width, Index column) {
          return rows.view().template as<T>() + i * width + column;
        };
        for (Index i = 0; i < kRows; ++i) {
          EXPECT_EQ(std::memcmp(row_of(out, i, spec.n + kNarrow, 0), row_of(first, i, spec.n, 0),
                                static_cast<size_t>(spec.n) * sizeof(T)),
                    0)
              << device->name() << " " << form_text(spec) << " decode rows " << num_decode << " row " << i;
          EXPECT_EQ(std::memcmp(row_of(out, i, spec.n + kNarrow, spec.n), row_of(second, i, kNarrow, 0),
                                static_cast<size_t>(kNarrow) * sizeof(T)),
                    0)
              << device->name() << " " << form_text(spec) << " narrow, decode rows " << num_decode << " row "
              << i;
        }
      }
    }
  }
}

// The memory plan asks before anything is packed; the workspace is the largest of all weights.
TYPED_TEST(DeviceQuantized, WhatAWeightWillTakeIsKnownBefore) {
  constexpr DType kDType = dtype_of<TypeParam>::value;
  const Buffer rows = random_rows<bf16>(37, 160);
  const RandomPart beside({.n = 44, .k = 160, .group_size = 32}),
      other({.n = 20, .k = 160, .group_size = 32});
  const std::vector<WeightPart> mixed = {beside.part(), other.part(), rows.view(), other.part()};
  const std::vector<WeightPart> dense = {rows.view(), rows.view()};
  for (const device::BackendOptions& options :
       {device::BackendOptions{}, device::BackendOptions{.dequant_workspace_bytes = 20'000},
        device::BackendOptions{.dequant_prefill = false}}) {
    const std::unique_ptr<Backend> device = device::make_backend(0, options);
    size_t workspace = 0;
    const auto expect_planned = [&](const std::vector<WeightPart>& parts, const std::string& what) {
      const PackedBytes planned = device::packed_bytes(parts, kDType, options);
      const size_t grown = std::max(workspace, planned.workspace) - workspace;
      workspace += grown;
      const size_t free_before = device::free_memory_bytes(0);
      const auto weight = device->pack_quantized(parts, kDType);
      EXPECT_EQ(weight->size_bytes(), planned.weight) << what;
      if (on_emulator()) {
        EXPECT_EQ(free_before - device::free_memory_bytes(0), planned.weight + grown) << what;
      }
    };
    for (const PartSpec& spec : kForms) {
      const RandomPart part(spec);
      expect_planned({part.part()}, form_text(spec));
    }
    expect_planned(mixed, "quantised and dense parts");
    expect_planned(dense, "dense parts");
    EXPECT_GT(workspace, 0u);  // without unpacking: rows of x in the order of permuted codes
  }
}

// Rows for several tasks of packing, and some left over.
TEST(DeviceQuantizedPacking, TheBitsAreThoseOfOneThread) {
  const Buffer x = random_rows<bf16>(9, 320);
  const Buffer dense = random_rows<f16>(75, 320);
  for (const PartSpec& spec : {PartSpec{.n = 150, .k = 320, .group_size = 64, .has_zeros = true},
                               {.n = 90, .k = 320, .group_size = 32, .groups = Groups::kShuffled},
                               {.n = 90, .k = 320, .group_size = 32, .scale_dtype = DType::kF32},
                               {.n = 75, .k = 320, .group_size = 64, .kind = CodeKind::kE4M3}}) {
    const RandomPart part(spec);
    const WeightPart parts[] = {part.part(), dense.view()};
    std::vector<Buffer> outs;
    for (const int num_threads : {1, 3}) {
      StagedBackend device(device::make_backend(0, {.num_threads = num_threads}));
      const auto weight = device.pack_quantized(parts, DType::kBF16);
      for (const Index num_decode : {Index{0}, kAll})
        outs.push_back(product(device, x.view(), *weight, num_decode));
    }
    EXPECT_TRUE(same_bits(outs[0], outs[2]) && same_bits(outs[1], outs[3])) << form_text(spec);
  }
}

// A small workspace cuts the rows of the weight; where the vendor's library chooses by shape, bits may
// differ.
TEST(DeviceDequantWorkspace, BoundsWhatIsUnpackedAtOnce) {
  const PartSpec spec{.n = 200, .k = 256, .group_size = 128};
  const RandomPart part(spec);
  const WeightPart parts[] = {part.part()};
  const Buffer x = random_rows<bf16>(21, spec.k);
  for (int index = 0; index < (on_emulator() ? 2 : 1); ++index) {
    std::vector<float> first;
    for (const size_t limit : {size_t{0}, size_t{40} << 10, size_t{1}}) {
      StagedBackend device(device::make_backend(index, {.dequant_workspace_bytes = limit}));
      const auto weight = device.pack_quantized(parts, DType::kBF16);
      const Buffer out = product(device, x.view(), *weight, 0);
      std::vector<float> values;
      for (Index i = 0; i < 21 * spec.n; ++i) values.push_back(static_cast<float>(out.view().as<bf16>()[i]));
      if (first.empty()) first = values;
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], first[i], 0.02f * std::abs(first[i]) + 0.05f);
      if (on_emulator()) {
        EXPECT_EQ(values, first) << "limit " << limit;
      }
    }
  }
}

TEST(DeviceDequantWorkspace, WithoutItTheFusedProductTakesAllRows) {
  for (const CodeKind kind : {CodeKind::kInt4, CodeKind::kE4M3}) {
    const RandomPart part({.n = 48, .k = 256, .group_size = 128, .kind = kind});
    const WeightPart parts[] = {part.part()};
    const Buffer x = random_rows<bf16>(40, 256);
    StagedBackend device(device::make_backend(0, {.dequant_prefill = false}));
    const auto weight = device.pack_quantized(parts, DType::kBF16);
    EXPECT_TRUE(same_bits(product(device, x.view(), *weight, 0), product(device, x.view(), *weight, kAll)));
  }
}

// What is recorded reads x anew each time; the workspace is the backend's own and goes with it.
TEST(DeviceDequantWorkspace, RecordedProductsFollowTheirInputs) {
  const PartSpec spec{.n = 64, .k = 256, .group_size = 128, .has_zeros = true};
  const RandomPart int4(spec);
  const RandomPart fp8({.n = 64, .k = 256, .group_size = 128, .kind = CodeKind::kE4M3, .scale_rows = 128});
  const RandomPart shuffled({.n = 64, .k = 256, .group_size = 128, .groups = Groups::kShuffled});
  struct Case {
    Index m;
    const RandomPart& part;
  };
  for (int index = 0; index < (on_emulator() ? 2 : 1); ++index) {
    const size_t free_before = device::free_memory_bytes(index);
    for (const auto& [m, part] : {Case{1, int4}, Case{20, int4}, Case{65, int4}, Case{1, fp8}, Case{20, fp8},
                                  Case{1, shuffled}, Case{20, shuffled}}) {
      const WeightPart parts[] = {part.part()};
      const std::unique_ptr<Backend> device = device::make_backend(index);
      const auto weight = device->pack_quantized(parts, DType::kBF16);
      Buffer x = device->allocate(DType::kBF16, {m, spec.k}),
             out = device->allocate(DType::kBF16, {m, spec.n});
      const auto call = [&] {
        device->matmul(
            {.x = x.view(), .num_decode_rows = m == 1 ? 1 : 0, .weight = weight.get(), .out = out.view()});
      };
      const auto put = [&](uint32_t seed) {
        const Buffer rows = random_rows<bf16>(m, spec.k, seed);
        device->upload(x.data(), rows.data(), rows.size_bytes());
      };
      const auto read = [&] {
        Buffer rows(DType::kBF16, {m, spec.n});
        device->download(rows.data(), out.data(), rows.size_bytes());
        return rows;
      };
      put(1);
      call();
      const std::unique_ptr<Recording> recording = device->record(call);
      if (recording == nullptr) GTEST_SKIP() << "this device does not record";
      for (uint32_t seed = 2; seed < 5; ++seed) {
        put(seed);
        ASSERT_TRUE(recording->replay());
        const Buffer replayed = read();
        device->zero(out.data(), out.size_bytes());
        call();
        EXPECT_TRUE(same_bits(replayed, read())) << device->name() << " rows " << m << " seed " << seed;
      }
    }
    if (on_emulator()) {
      EXPECT_EQ(device::free_memory_bytes(index), free_before);
    }
  }
}

}  // namespace
}  // namespace longspan::ops::test
