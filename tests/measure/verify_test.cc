// Faults planted in a small model are found, each named with layer and operation; without them all is well.
#include <gtest/gtest.h>

#include <limits>

#include "measure/faulty_backend.h"
#include "measure/op_trace.h"
#include "measure/reference_check.h"
#include "measure/verify.h"
#include "support/fixture.h"

namespace longspan::measure {
namespace {

using testing::Fault;

// Layers: 0 attention, 1 and 2 gated delta, 3 attention, 4 gated delta.
constexpr const char* kModel = "hybrid_r1_mixed_layers";

VerifyOptions options_with(Fault fault, DType dtype = DType::kBF16) {
  VerifyOptions options{.engine = {.model = testing::model_dir(kModel), .dtype = dtype}, .num_tokens = 4};
  for (int32_t i = 0; i < 139; ++i) options.prompt.push_back((i * 37 + 11) % 300);
  if (fault.on_op || fault.on_copy)
    options.engine.wrap_backend = [fault](std::unique_ptr<ops::Backend> backend) {
      return std::make_unique<testing::FaultyBackend>(std::move(backend), fault);
    };
  return options;
}

// A fault in one operation of one layer.
template <class Op>
Fault in_layer(Index layer, std::function<void(Op&, const std::function<void()>&)> act) {
  return {.on_op = [=](OpCall& call, Index at, const std::function<void()>& run) {
    if (auto* op = std::get_if<Op>(&call); op != nullptr && at == layer)
      act(*op, run);
    else
      run();
  }};
}

Finding only(const Findings& findings, std::string_view topic) {
  for (const Finding& one : findings)
    if (one.topic == topic) return one;
  ADD_FAILURE() << "nothing about " << topic << " in\n" << to_text(findings);
  return {};
}

void expect_fail(const Findings& findings, std::string_view topic, std::string_view words) {
  const Finding found = only(findings, topic);
  EXPECT_EQ(found.verdict, Verdict::kFail) << to_text(findings);
  EXPECT_NE(found.text.find(words), std::string::npos) << found.text << "\nneed: " << words;
}

// ---- nothing planted ----

class VerifySoundModel : public ::testing::TestWithParam<DType> {};

TEST_P(VerifySoundModel, PassesEveryCheck) {
  int num_told = 0;
  VerifyOptions options = options_with({}, GetParam());
  options.on_finding = [&](const Finding&) { ++num_told; };
  const Findings findings = verify_engine(options);
  for (const Finding& one : findings) EXPECT_EQ(one.verdict, Verdict::kOk) << to_text({one});
  EXPECT_EQ(num_told, std::ssize(findings));
  for (const char* topic : {"finite", "operations", "layers", "repeat", "prefix hit", "path"})
    only(findings, topic);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, VerifySoundModel, ::testing::Values(DType::kBF16, DType::kF32));

TEST(VerifySoundModel, PassesInEitherLayout) {
  VerifyOptions options = options_with({});
  options.engine.pages.layout = cache::Layout::kSplit;
  const Findings findings = verify_engine(options);
  EXPECT_FALSE(any_failed(findings)) << to_text(findings);
}

// The reference multiplies the numbers that codes stand for, the processor the same rounded to bfloat16.
TEST(VerifySoundModel, PassesWithPackedWeights) {
  for (const char* name : {"quant_awq_g128", "quant_gptq_g128_sym", "quant_ct_g128_sym", "quant_ct_g32_asym",
                           "quant_fp8_block128"})
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      VerifyOptions options = options_with({}, dtype);
      options.engine.model = testing::model_dir(name);
      const Findings findings = verify_operations(options);
      EXPECT_FALSE(any_failed(findings)) << name << "\n" << to_text(findings);
    }
}

// ---- planted faults ----

TEST(VerifyFindsAFault, OneWrongSlot) {
  std::vector<int32_t> slots;
  const Fault fault = in_layer<ops::QkRopeWrite>(3, [&](ops::QkRopeWrite& op, const auto& run) {
    const int32_t* given = op.slots.as<int32_t>();
    slots.assign(given, given + op.slots.dim(0));
    if (slots.size() > 5) slots[5] += 1;  // what the sixth token's neighbour writes over
    op.slots.data = slots.data();
    run();
  });
  const Findings findings = verify_operations(options_with(fault));
  expect_fail(findings, "operations", "layer 3 qk_rope_write: K and V");
  expect_fail(findings, "operations", "slot ");
}

TEST(VerifyFindsAFault, OneSwappedHead) {
  const Fault fault = in_layer<ops::Attention>(0, [](ops::Attention& op, const auto& run) {
    run();
    for (Index i = 0; i < op.out.dim(0); ++i)
      for (Index j = 0; j < op.out.dim(2); ++j) {
        bf16* row = op.out.as<bf16>() + i * op.out.stride(0) + j;
        std::swap(row[op.out.stride(1)], row[2 * op.out.stride(1)]);
      }
  });
  const Findings findings = verify_operations(options_with(fault));
  expect_fail(findings, "operations", "layer 0 attention: out");
  expect_fail(findings, "operations", "heads 1, 2 of 4");
}

TEST(VerifyFindsAFault, AScaleOffByOnePercent) {
  const Fault fault = in_layer<ops::Attention>(3, [](ops::Attention& op, const auto& run) {
    op.scale *= 1.01f;
    run();
  });
  // In float32 rounding hides nothing of it; in bfloat16 it hides most where attention is flat.
  expect_fail(verify_operations(options_with(fault, DType::kF32)), "operations", "layer 3 attention: out");

  const Fault norm = in_layer<ops::RmsNorm>(2, [](ops::RmsNorm& op, const auto& run) {
    run();
    for (Index i = 0; i < op.out.num_elements(); ++i)
      op.out.as<bf16>()[i] = bf16(static_cast<float>(op.out.as<bf16>()[i]) * 1.01f);
  });
  expect_fail(verify_operations(options_with(norm)), "operations", "layer 2 rms_norm: out");
}

TEST(VerifyFindsAFault, NaNInOneLayer) {
  const Fault fault = in_layer<ops::GatedDelta>(1, [](ops::GatedDelta& op, const auto& run) {
    run();
    op.out.as<bf16>()[0] = bf16(std::numeric_limits<float>::quiet_NaN());
  });
  const Findings findings = verify_operations(options_with(fault));
  expect_fail(findings, "finite", "layer 1 gated_delta: out has 1 numbers that are not finite");
  expect_fail(findings, "finite", "heads 0 of 4");
}

TEST(VerifyFindsAFault, AStaleStateAfterACacheHit) {
  // States are copied one layer after the other: 1, 2, 4. The second one is forgotten.
  VerifyOptions options = options_with({});
  options.engine.pages.layout = cache::Layout::kSplit;  // a state's copies have a size of their own
  const engine::EngineInfo info = engine::make_plan(options.engine, engine::Purpose::kRun);
  const auto state_bytes = static_cast<size_t>(info.page_plan.state_page_bytes);
  Fault fault;
  fault.on_copy = [state_bytes](size_t bytes, int number) { return bytes != state_bytes || number % 3 != 1; };
  options.engine.wrap_backend = options_with(fault).engine.wrap_backend;
  const Findings findings = verify_prefix_hit(options);
  expect_fail(findings, "prefix hit", "layer 2 causal_conv begins from another state");
  EXPECT_FALSE(any_failed(verify_operations(options))) << "each operation by itself is right";
}

TEST(VerifyFindsAFault, APathThatGivesOtherBits) {
  const Fault fault = in_layer<ops::Attention>(3, [](ops::Attention& op, const auto& run) {
    if (op.path == ops::AttentionPath::kPageContiguousDecode) op.scale *= 1.01f;
    run();
  });
  const Findings findings = verify_paths(options_with(fault));
  expect_fail(findings, "path", "page_contiguous_decode off");
  expect_fail(findings, "path", "layer 3 attention gives other numbers");
}

TEST(VerifyFindsAFault, WhatAnEarlierRequestLeaves) {
  auto count = std::make_shared<int>(0);
  const Fault fault = in_layer<ops::CausalConv>(4, [count](ops::CausalConv& op, const auto& run) {
    run();
    if (++*count > 5) op.out.as<bf16>()[3].bits ^= 1;  // the last bit, from the sixth step on
  });
  expect_fail(verify_repeats(options_with(fault)), "repeat", "layer 4 causal_conv gives other numbers");
}

TEST(VerifyFindsAFault, ALayerThatDriftsAway) {
  const Fault fault = in_layer<ops::SwiGlu>(99, [](ops::SwiGlu&, const auto& run) { run(); });
  const Fault drift = {.on_op = [](OpCall& call, Index layer, const std::function<void()>& run) {
    run();
    const auto* product = std::get_if<ops::MatmulSwiGlu>(&call);
    if (product == nullptr || layer != 2) return;
    for (Index i = 0; i < product->out.num_elements(); ++i)
      product->out.as<bf16>()[i] = bf16(static_cast<float>(product->out.as<bf16>()[i]) * 3.0f);
  }};
  EXPECT_FALSE(any_failed(verify_layers(options_with(fault))));
  expect_fail(verify_layers(options_with(drift)), "layers", "rows after layer 2");
}

// ---- the parts ----

TEST(OpTrace, NamesTheFirstOperationThatDiffers) {
  TracedStep one{.num_tokens = 5,
                 .marks = {{0, "matmul", 0, 1}, {0, "gated_delta", 7, 2}, {1, "matmul", 0, 3}}};
  TracedStep other = one;
  EXPECT_FALSE(first_difference(one, other));
  other.marks[2].after = 4;
  EXPECT_EQ(first_difference(one, other), "layer 1 matmul gives other numbers");
  other.marks[1].before = 8;
  EXPECT_EQ(first_difference(one, other), "layer 0 gated_delta begins from another state");
  other.num_tokens = 6;
  EXPECT_EQ(first_difference(one, other), "a step has 5 tokens in one run, 6 in the other");
}

TEST(Verify, RefusesAPromptThatPredictsNothing) {
  VerifyOptions options = options_with({});
  options.prompt = {1};
  EXPECT_THROW(verify_engine(options), Error);
}

}  // namespace
}  // namespace longspan::measure
