// Every reference fixture through the whole engine, in float32 and bfloat16 (float16 on devices), by the
// limits of tests/fixtures/README.md.
#include <gtest/gtest.h>

#include "ops/device/backend.h"
#include "support/fixture.h"

namespace longspan {
namespace {

struct Limits {
  double relative_l2 = 0;
  double relative_l2_long = 0;  // above 10,000 tokens
  double gap = 0;               // a first differing id is an error above it; negative: ids are not compared
};

struct FixtureCase {
  std::string fixture;
  DType dtype;
  Limits limits;
  engine::DeviceKind device = engine::DeviceKind::kCpu;
  int64_t max_prompt = 1 << 20;  // longer prompts are left out (the reference device is slow)
  int device_index = 0;
  std::optional<DType> kv_dtype = std::nullopt;
  int64_t min_prompt = 0;  // shorter prompts are left out
};

constexpr int64_t kLongPrompt = 20000;
constexpr size_t kEmulatedIds = 8;  // of an answer: its steps are alike, and slow in the emulator

std::string case_name(const ::testing::TestParamInfo<FixtureCase>& info) {
  return info.param.fixture + fmt::format("_{}", dtype_name(info.param.dtype)) +
         (info.param.device == engine::DeviceKind::kReference ? "_reference" : "") +
         (info.param.kv_dtype ? "_fp8_cache" : "") +
         (info.param.device_index > 0 ? fmt::format("_{}", info.param.device_index) : "");
}

class Fixture : public ::testing::TestWithParam<FixtureCase> {};

bool is_emulated(const FixtureCase& param) {
  return param.device == engine::DeviceKind::kDevice &&
         std::string_view(ops::device::vendor_name()) == "emulator";
}

// Index of the first differing id; -1 when equal.
int first_difference(const std::vector<int32_t>& got, std::span<const int32_t> want) {
  for (size_t i = 0; i < want.size(); ++i)
    if (i >= got.size() || got[i] != want[i]) return static_cast<int>(i);
  return -1;
}

TEST_P(Fixture, LogitsAndGreedyIdsMatch) {
  const FixtureCase& param = GetParam();
  if (param.min_prompt > 0 && !testing::long_tests()) GTEST_SKIP() << "a minute: LONGSPAN_LONG_TESTS";
  engine::Engine engine({.model = testing::model_dir(param.fixture),
                         .device = param.device,
                         .device_index = param.device_index,
                         .dtype = param.dtype,
                         .max_num_seqs = 1,
                         .kv_dtype = param.kv_dtype});
  const testing::Reference reference(param.fixture);
  ASSERT_GT(reference.num_cases(), 0);
  for (int i = 0; i < reference.num_cases(); ++i) {
    const testing::ReferenceCase want = reference.at(i);
    const int64_t num_tokens = std::ssize(want.prompt);
    if (num_tokens > param.max_prompt || num_tokens < param.min_prompt) continue;
    std::span<const int32_t> want_ids = want.greedy_ids;
    if (is_emulated(param)) want_ids = want_ids.first(std::min(want_ids.size(), kEmulatedIds));
    const testing::Answer got =
        testing::generate(engine, want.prompt, std::ssize(want_ids), want.last_logits.size());
    ASSERT_EQ(got.prompt_logits.size(), want.last_logits.size()) << "prompt " << i;
    const double error = testing::relative_l2(got.prompt_logits, want.last_logits);
    const double limit = num_tokens > 10000 ? param.limits.relative_l2_long : param.limits.relative_l2;
    EXPECT_LE(error, limit) << "prompt " << i << " of " << num_tokens << " tokens";
    const int at = first_difference(got.ids, want_ids);
    if (at >= 0 && param.limits.gap >= 0) {
      EXPECT_LE(want.greedy_gap[static_cast<size_t>(at)], param.limits.gap)
          << "prompt " << i << ", token " << at;
    }
    std::printf("  prompt %2d  %6ld tokens  relative L2 %.2e  first different id %d\n", i, num_tokens, error,
                at);
  }
}

constexpr Limits kExact{1e-4, 3e-4, 1e-3};
constexpr Limits kQuantisedBf16{5e-2, 5e-2, 0.25};
// Three bits of mantissa more than bfloat16: an eighth of its limits.
constexpr Limits in_float16(const Limits& bfloat16) {
  return {bfloat16.relative_l2 / 8, bfloat16.relative_l2_long / 8,
          bfloat16.gap < 0 ? bfloat16.gap : bfloat16.gap / 8};
}
constexpr Limits kHybridBf16{1.5e-1, 1.5e-1, -1};
constexpr Limits kHead256Bf16{5e-2, 5e-2, 0.25};
constexpr Limits kDenseBf16{2.5e-2, 2.5e-2, 0.25};
constexpr Limits kTinyBf16{1.5e-2, 1.5e-2, 0.25};
constexpr Limits kFp8Cache{5e-2, 5e-2, 0.25};
constexpr Limits kFp8CacheRandom{1e-1, 1e-1,
                                 -1};  // random weights: K's eight bits show, on every device alike

INSTANTIATE_TEST_SUITE_P(Float32, Fixture,
                         ::testing::Values(FixtureCase{"hybrid_r3_tied", DType::kF32, kExact},
                                           FixtureCase{"hybrid_r2_untied_sharded", DType::kF32, kExact},
                                           FixtureCase{"hybrid_r1_mixed_layers", DType::kF32, kExact},
                                           FixtureCase{"hybrid_head256", DType::kF32, kExact},
                                           FixtureCase{"wrapped_multimodal", DType::kF32, kExact},
                                           FixtureCase{"dense_qwen3", DType::kF32, kExact},
                                           FixtureCase{"dense_qwen2_bias", DType::kF32, kExact},
                                           FixtureCase{"tiny", DType::kF32, kExact, engine::DeviceKind::kCpu,
                                                       kLongPrompt - 1}),
                         case_name);
// In bfloat16 the long prompt is always read.
INSTANTIATE_TEST_SUITE_P(
    Long, Fixture,
    ::testing::Values(FixtureCase{
        .fixture = "tiny", .dtype = DType::kF32, .limits = kExact, .min_prompt = kLongPrompt}),
    case_name);

INSTANTIATE_TEST_SUITE_P(Bfloat16, Fixture,
                         ::testing::Values(FixtureCase{"hybrid_r3_tied", DType::kBF16, kHybridBf16},
                                           FixtureCase{"hybrid_r2_untied_sharded", DType::kBF16, kHybridBf16},
                                           FixtureCase{"hybrid_r1_mixed_layers", DType::kBF16, kHybridBf16},
                                           FixtureCase{"hybrid_head256", DType::kBF16, kHead256Bf16},
                                           FixtureCase{"wrapped_multimodal", DType::kBF16, kHybridBf16},
                                           FixtureCase{"dense_qwen3", DType::kBF16, kDenseBf16},
                                           FixtureCase{"dense_qwen2_bias", DType::kBF16, kDenseBf16},
                                           FixtureCase{"tiny", DType::kBF16, kTinyBf16}),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Quantised, Fixture,
                         ::testing::Values(FixtureCase{"quant_awq_g128", DType::kF32, kExact},
                                           FixtureCase{"quant_gptq_g128_sym", DType::kF32, kExact},
                                           FixtureCase{"quant_ct_g128_sym", DType::kF32, kExact},
                                           FixtureCase{"quant_ct_g32_asym", DType::kF32, kExact},
                                           FixtureCase{"quant_fp8_block128", DType::kF32, kExact},
                                           FixtureCase{"quant_awq_g128", DType::kBF16, kQuantisedBf16},
                                           FixtureCase{"quant_gptq_g128_sym", DType::kBF16, kQuantisedBf16},
                                           FixtureCase{"quant_ct_g128_sym", DType::kBF16, kQuantisedBf16},
                                           FixtureCase{"quant_ct_g32_asym", DType::kBF16, kQuantisedBf16},
                                           FixtureCase{"quant_fp8_block128", DType::kBF16, kQuantisedBf16},
                                           FixtureCase{"quant_awq_g128", DType::kF32, kExact,
                                                       engine::DeviceKind::kReference, 70}),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Fp8Cache, Fixture,
                         ::testing::Values(FixtureCase{"dense_qwen3", DType::kBF16, kFp8CacheRandom,
                                                       engine::DeviceKind::kCpu, 1 << 20, 0, DType::kF8E4M3},
                                           FixtureCase{"dense_qwen3", DType::kF32, kFp8CacheRandom,
                                                       engine::DeviceKind::kReference, 20, 0,
                                                       DType::kF8E4M3}),
                         case_name);

// The oracle itself, on the short prompts.
INSTANTIATE_TEST_SUITE_P(
    Reference, Fixture,
    ::testing::Values(
        FixtureCase{"hybrid_r3_tied", DType::kF32, kExact, engine::DeviceKind::kReference, 70},
        FixtureCase{"hybrid_r2_untied_sharded", DType::kF32, kExact, engine::DeviceKind::kReference, 70},
        FixtureCase{"dense_qwen3", DType::kF32, kExact, engine::DeviceKind::kReference, 70},
        FixtureCase{"dense_qwen2_bias", DType::kF32, kExact, engine::DeviceKind::kReference, 70}),
    case_name);

// The card of this build with everything; or the emulator at wave 32 and 64, on short prompts.
std::vector<FixtureCase> device_cases() {
  constexpr auto kDevice = engine::DeviceKind::kDevice;
  if (std::string_view(ops::device::vendor_name()) == "none") return {};
  if (std::string_view(ops::device::vendor_name()) == "emulator")
    return {{"hybrid_r3_tied", DType::kF32, kExact, kDevice, 70, 0},
            {"hybrid_r3_tied", DType::kF32, kExact, kDevice, 70, 1},
            {"dense_qwen2_bias", DType::kF32, kExact, kDevice, 20, 1},
            {"quant_awq_g128", DType::kF32, kExact, kDevice, 1, 1},
            {"hybrid_r3_tied", DType::kF16, in_float16(kHybridBf16), kDevice, 70, 0},
            {"hybrid_head256", DType::kF16, in_float16(kHead256Bf16), kDevice, 20, 1},
            {"dense_qwen2_bias", DType::kF16, in_float16(kDenseBf16), kDevice, 20, 0},
            {"quant_ct_g32_asym", DType::kF16, in_float16(kQuantisedBf16), kDevice, 1, 0},
            {"quant_ct_g32_asym", DType::kBF16, kQuantisedBf16, kDevice, 1, 0},
            {"quant_fp8_block128", DType::kF32, kExact, kDevice, 1, 0},
            {"dense_qwen3", DType::kBF16, kFp8CacheRandom, kDevice, 20, 0, DType::kF8E4M3},
            {"dense_qwen3", DType::kBF16, kFp8CacheRandom, kDevice, 20, 1, DType::kF8E4M3},
            {"dense_qwen3", DType::kF16, kFp8CacheRandom, kDevice, 20, 1, DType::kF8E4M3}};
  std::vector<FixtureCase> cases;
  for (const char* fixture :
       {"hybrid_r3_tied", "hybrid_r2_untied_sharded", "hybrid_r1_mixed_layers", "hybrid_head256",
        "wrapped_multimodal", "dense_qwen3", "dense_qwen2_bias", "tiny"})
    cases.push_back({fixture, DType::kF32, kExact, kDevice});
  for (const auto& [fixture, limits] : {std::pair{"hybrid_head256", kHead256Bf16},
                                        {"hybrid_r3_tied", kHybridBf16},
                                        {"dense_qwen3", kDenseBf16},
                                        {"tiny", kTinyBf16}}) {
    cases.push_back({fixture, DType::kBF16, limits, kDevice});
    cases.push_back({fixture, DType::kF16, in_float16(limits), kDevice});
  }
  for (const char* fixture : {"quant_awq_g128", "quant_gptq_g128_sym", "quant_ct_g128_sym",
                              "quant_ct_g32_asym", "quant_fp8_block128"}) {
    cases.push_back({fixture, DType::kF32, kExact, kDevice});
    cases.push_back({fixture, DType::kBF16, kQuantisedBf16, kDevice});
    cases.push_back({fixture, DType::kF16, in_float16(kQuantisedBf16), kDevice});
  }
  cases.push_back({"tiny", DType::kBF16, kFp8Cache, kDevice, 1 << 20, 0, DType::kF8E4M3});
  cases.push_back({"dense_qwen3", DType::kF32, kFp8CacheRandom, kDevice, 1 << 20, 0, DType::kF8E4M3});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Device, Fixture, ::testing::ValuesIn(device_cases()), case_name);

// The layers of case 1, one by one: a fault shows where it is made.
TEST(FixtureLayers, HiddenStatesMatch) {
  for (const char* fixture : {"hybrid_r3_tied", "hybrid_head256", "dense_qwen3"}) {
    engine::Engine engine({.model = testing::model_dir(fixture), .dtype = DType::kF32, .max_num_seqs = 1});
    const testing::Reference reference(fixture);
    int num_compared = 0;
    engine.set_layer_tap([&](Index k, const TensorView& hidden) {
      const auto want = reference.hidden(static_cast<int>(k));
      if (want.size() != static_cast<size_t>(hidden.dim(0))) return;
      std::vector<std::vector<float>> got;
      for (Index i = 0; i < hidden.dim(0); ++i)
        got.push_back(testing::to_floats(TensorView(hidden.rows(i, 1).data, hidden.dtype, {hidden.dim(1)})));
      EXPECT_LE(testing::relative_l2(got, want), 1e-4) << fixture << " after layer " << k;
      ++num_compared;
    });
    testing::generate(engine, reference.at(1).prompt, 1, reference.at(1).prompt.size());
    EXPECT_EQ(num_compared, engine.info().config.num_layers() + 1) << fixture;
  }
}

}  // namespace
}  // namespace longspan
