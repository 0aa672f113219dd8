// GPTQ with groups in the order of activations through the whole engine: the answers of the same weights
// given as float32, by the limits of tests/fixtures/README.md for quantised weights.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/device/backend.h"
#include "support/fixture.h"
#include "support/gptq_twins.h"

namespace longspan {
namespace {

constexpr double kLimitFloat32 = 1e-4;
constexpr double kLimitBfloat16 = 5e-2;
constexpr size_t kKept = 4;  // positions whose logits are compared

struct Prompt {
  int64_t num_tokens;
  int64_t num_new;
};

testing::Answer answer_of(engine::EngineOptions options, const Prompt& prompt) {
  options.max_num_seqs = 1;
  engine::Engine engine(options);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < prompt.num_tokens; ++i)
    ids.push_back(static_cast<int32_t>((17 + 31 * i) % engine.info().config.vocab_size));
  return testing::generate(engine, ids, prompt.num_new, kKept);
}

void expect_twins(const testing::Answer& got, const testing::Answer& want, double limit, const char* what) {
  ASSERT_EQ(want.prompt_logits.size(), kKept) << what;
  ASSERT_EQ(got.prompt_logits.size(), kKept) << what;
  const double error = testing::relative_l2(got.prompt_logits, want.prompt_logits);
  std::printf("  %s: relative L2 %.2e\n", what, error);
  EXPECT_LE(error, limit) << what;
}

TEST(ActOrder, TheBundledModelOnTheCpu) {
  const testing::GptqTwins twins(testing::model_dir("tiny"), 32);
  ASSERT_GT(twins.num_layers(), 20);
  const Prompt prompt{150, 12};
  const testing::Answer want = answer_of({.model = twins.dense(), .dtype = DType::kF32}, prompt);
  const testing::Answer exact = answer_of({.model = twins.packed(), .dtype = DType::kF32}, prompt);
  expect_twins(exact, want, kLimitFloat32, "float32");
  EXPECT_EQ(exact.ids, want.ids);  // decode rows
  const testing::Answer rounded = answer_of({.model = twins.packed(), .dtype = DType::kBF16}, prompt);
  expect_twins(rounded, want, kLimitBfloat16, "bfloat16");
  // The weights are those of the bundled model, as near as four bits are.
  const testing::Answer plain =
      answer_of({.model = testing::model_dir("tiny"), .dtype = DType::kF32}, prompt);
  const double of_rounding = testing::relative_l2(want.prompt_logits, plain.prompt_logits);
  EXPECT_LT(of_rounding, 0.4);
  EXPECT_GT(of_rounding, 1e-3);
}

// On the emulator at wave 32 and 64, or on the card of this build.
TEST(ActOrder, ASmallModelOnADevice) {
  const std::string_view vendor = ops::device::vendor_name();
  if (vendor == "none") GTEST_SKIP() << "a build without a device";
  const testing::GptqTwins twins(testing::model_dir("hybrid_r3_tied"), 32);
  ASSERT_GT(twins.num_layers(), 20);
  const Prompt prompt{21, 5};
  const testing::Answer want = answer_of({.model = twins.dense(), .dtype = DType::kF32}, prompt);
  for (int index = 0; index < (vendor == "emulator" ? 2 : 1); ++index) {
    const testing::Answer got = answer_of({.model = twins.packed(),
                                           .device = engine::DeviceKind::kDevice,
                                           .device_index = index,
                                           .dtype = DType::kF32},
                                          prompt);
    expect_twins(got, want, kLimitFloat32, index == 0 ? "device 0" : "device 1");
    EXPECT_EQ(got.ids, want.ids);
  }
}

// What the twins rest on: groups out of order, with as many codes each.
TEST(ActOrder, TheGroupsAreShuffled) {
  model::PackedLayer layer(16, 128, 32);
  layer.permute_groups();
  const std::vector<int32_t>& groups = layer.group_of();
  EXPECT_FALSE(std::is_sorted(groups.begin(), groups.end()));
  for (int32_t group = 0; group < 4; ++group) EXPECT_EQ(std::count(groups.begin(), groups.end(), group), 32);
}

}  // namespace
}  // namespace longspan
