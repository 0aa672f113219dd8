// A decode step's inputs that are written on the device: the integers of the general way, and the same
// answers.
#include <gtest/gtest.h>

#include <random>

#include "engine/input_mirror.h"
#include "ops/device/backend.h"
#include "support/fixture.h"
#include "support/small_plan.h"

namespace longspan {
namespace {

using engine::UploadReason;
using testing::small_plan;

struct Way {
  Way(const cache::PagePlan& plan, bool steady)
      : dispatcher({.steady_decode_inputs = steady},
                   {.head_dim = 16, .num_q_heads = 1, .num_kv_heads = 1, .page_tokens = plan.page_tokens}),
        batch(plan, 512, 4, dispatcher) {}
  const model::StepInputs& build(const schedule::StepPlan& step, schedule::Scheduler& scheduler) {
    return batch.build(
        step, scheduler, [](schedule::SeqId) { return false; }, nullptr);
  }
  engine::Dispatcher dispatcher;
  engine::InputBatch batch;
};

// A mirror in the device's memory, and the place where the device chooses tokens.
struct Device {
  explicit Device(const cache::PagePlan& plan)
      : ops(ops::device::make_backend(0)),
        mirror(ops.memory(), plan, 512, 4, 600),
        tokens(ops.memory().allocate(DType::kI32, {1})) {
    mirror.start_counting();
  }
  const model::StepInputs& update(const model::StepInputs& inputs, bool steady) {
    const model::StepInputs& mirrored = mirror.update(inputs, {.steady = steady, .chosen_token = chosen});
    if (mirror.is_behind()) mirror.advance(ops, tokens.view());
    chosen = -1;
    return mirrored;
  }
  void choose(int32_t token) {
    ops.memory().upload(tokens.data(), &token, sizeof(token));
    chosen = token;
  }
  ops::Ops ops;
  engine::InputMirror mirror;
  Buffer tokens;
  int32_t chosen = -1;
};

class RandomSteps : public ::testing::TestWithParam<cache::Layout> {};

// Requests come, go and are preempted; now and then one is alone, and mostly the device chose its last token.
TEST_P(RandomSteps, TheKernelWritesTheIntegersOfTheGeneralWay) {
  const cache::PagePlan plan = small_plan(GetParam());
  schedule::Scheduler scheduler(
      plan, {.num_pages = GetParam() == cache::Layout::kUnified ? 16 : 10, .num_state_slots = 4},
      {.max_num_seqs = 4, .max_num_batched_tokens = 512, .max_model_len = 600});
  Way steady(plan, true), general(plan, false);
  Device device(plan);
  std::mt19937 random(5);
  schedule::SeqId next_id = 1;
  for (int num_steps = 0; num_steps < 4000;) {
    if (random() % (scheduler.has_work() ? 150 : 2) == 0)
      scheduler.add({.id = next_id++,
                     .prompt = std::vector<int32_t>(1 + random() % 300, 3),
                     .max_new_tokens = 1 + static_cast<int64_t>(random() % 250)});
    if (random() % 200 == 0) scheduler.cancel(static_cast<schedule::SeqId>(next_id - 1 - random() % 3));
    const schedule::StepPlan& step = scheduler.plan_step();
    if (step.empty()) continue;
    ++num_steps;
    const model::StepInputs& inputs = steady.build(step, scheduler);
    const engine::InputCopy got =
        engine::copy_to_host(device.ops.memory(), device.update(inputs, steady.batch.is_steady()));
    ASSERT_EQ(engine::first_difference(got.inputs, general.build(step, scheduler)), "")
        << "step " << num_steps;
    std::vector<schedule::Sampled> sampled;
    for (const schedule::PlannedSeq& seq : step.seqs)
      if (seq.sample) sampled.push_back({.id = seq.id, .token = static_cast<int32_t>(random() % 1000)});
    if (sampled.size() == 1 && random() % 10 != 0) device.choose(sampled.front().token);
    scheduler.complete(sampled);
  }
  const engine::MirrorCounters& counters = device.mirror.counters();
  EXPECT_GT(counters.num_advanced, 200);
  EXPECT_GT(counters.num_table_uploads, 0);
  EXPECT_LT(counters.num_table_uploads, counters.num_advanced / 8);
  for (size_t i = 0; i < engine::kNumUploadReasons; ++i)
    EXPECT_GT(counters.uploads[i], 0) << engine::upload_reason(i);
}

INSTANTIATE_TEST_SUITE_P(Layouts, RandomSteps,
                         ::testing::Values(cache::Layout::kUnified, cache::Layout::kSplit),
                         [](const auto& layout) { return std::string(cache::to_string(layout.param)); });

engine::EngineOptions on_device(bool steady_inputs) {
  return {.model = testing::model_dir("hybrid_r3_tied"),
          .device = engine::DeviceKind::kDevice,
          .dtype = DType::kF32,
          .max_model_len = 128,
          .max_num_seqs = 2,
          .pages = {.alignment = 16, .layout = cache::Layout::kSplit},
          .dispatch = {.steady_decode_inputs = steady_inputs}};
}

TEST(DeviceInputs, SteadyDecodeCopiesOnlyTablesThatGrow) {
  engine::Engine general(on_device(false)), steady(on_device(true));
  const std::vector<int32_t> prompt = {3, 7, 11, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59};
  constexpr int64_t kAnswer = 21;  // over two ends of pages
  EXPECT_EQ(testing::generate(steady, prompt, kAnswer).ids, testing::generate(general, prompt, kAnswer).ids);
  // The prompt, and the first decode step, which follows no other.
  const engine::MirrorCounters counters = steady.status().mirror;
  EXPECT_EQ(counters.num_advanced, kAnswer - 2);
  EXPECT_EQ(counters.num_table_uploads, 2);
  EXPECT_EQ(counters.uploads[static_cast<size_t>(UploadReason::kNotSteady)], 2);
  EXPECT_EQ(counters.uploads[static_cast<size_t>(UploadReason::kTokenOnHost)], 0);
  EXPECT_EQ(steady.status().inputs.num_dispatched, kAnswer - 2);
  EXPECT_EQ(general.status().mirror.num_advanced, 0);
}

}  // namespace
}  // namespace longspan
