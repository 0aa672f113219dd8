#include "measure/input_prep.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/input_batch.h"
#include "engine/input_mirror.h"
#include "ops/device/backend.h"
#include "ops/reference/backend.h"
#include "schedule/scheduler.h"

namespace longspan::measure {
namespace {

constexpr int64_t kMaxTokens = 1 << 22;
constexpr int32_t kMaxNumSeqs = 128;
constexpr int64_t kChunk = 4096;

// The layers of Qwen3.5-27B: three with a state, then one with attention, sixteen times.
cache::CacheSpec spec_27b() {
  cache::CacheSpec spec{.num_kv_heads = 4,
                        .head_dim = 256,
                        .conv_kernel = 4,
                        .conv_dim = 10240,
                        .num_v_heads = 48,
                        .v_dim = 128,
                        .k_dim = 128};
  for (int layer = 0; layer < 64; ++layer)
    spec.layers.push_back(layer % 4 == 3 ? cache::LayerKind::kAttention : cache::LayerKind::kState);
  return spec;
}

void check(const InputPrepOptions& options) {
  const auto in_range = [](const char* name, int64_t got, int64_t min) {
    if (got < min || got > kMaxTokens)
      fail(ErrorKind::kInvalid, "{}: got {}, need {} to {}", name, got, min, kMaxTokens);
  };
  in_range("position", options.position, 1);
  in_range("steps", options.num_steps, 2);
  in_range("warm-up", options.num_warm_up, 0);
  in_range("rounds", options.num_rounds, 1);
}

// One sequence that has decoded all its tokens, and the plans of the steps it took. Their tokens lie in the
// sequence, their pages in its row of the tables: both stay.
struct Steps {
  explicit Steps(const InputPrepOptions& options)
      : plan(cache::plan_pages(spec_27b(), {.alignment = 64, .layout = options.layout})),
        num_tokens(options.position + options.num_warm_up + options.num_steps),
        scheduler(
            plan,
            {.num_pages = static_cast<int32_t>(plan.pages_for(num_tokens + 2) + 8), .num_state_slots = 1},
            {.max_num_seqs = kMaxNumSeqs,
             .max_num_batched_tokens = kChunk,
             .max_model_len = num_tokens + 2}) {
    constexpr int32_t kVocabulary = 248320;
    scheduler.add({.id = 1,
                   .prompt = std::vector<int32_t>(static_cast<size_t>(options.position), 17),
                   .max_new_tokens = num_tokens + 2 - options.position});
    while (std::ssize(decodes) < options.num_warm_up + options.num_steps) {
      const schedule::StepPlan& step = scheduler.plan_step();
      if (step.num_decode_seqs == 1) decodes.push_back(step);
      schedule::Sampled sampled{.id = 1,
                                .token = static_cast<int32_t>(std::ssize(decodes) * 7919 % kVocabulary)};
      scheduler.complete({&sampled, step.seqs.front().sample ? size_t{1} : size_t{0}});
    }
  }

  cache::PagePlan plan;
  int64_t num_tokens;
  schedule::Scheduler scheduler;
  std::vector<schedule::StepPlan> decodes;
};

std::unique_ptr<ops::Backend> make_backend(const std::optional<int>& device_index) {
  return device_index ? ops::device::make_backend(*device_index) : ops::reference::make_backend();
}

// What each decode step was given as its token, where the device chooses tokens: i32 [num_steps].
Buffer chosen_tokens(const Steps& steps, Memory& memory) {
  Buffer tokens(DType::kI32, {std::ssize(steps.decodes)});
  std::ranges::transform(steps.decodes, tokens.view().as<int32_t>(),
                         [](const schedule::StepPlan& step) { return step.seqs.front().tokens.front(); });
  return moved_to(memory, std::move(tokens));
}

// One of the two ways, up to the arrays in the memory of the operations.
struct Way {
  Way(Steps& all_steps, ops::Ops& all_ops, bool steady)
      : steps(all_steps),
        ops(all_ops),
        dispatcher(
            {.steady_decode_inputs = steady},
            {.head_dim = 256, .num_q_heads = 24, .num_kv_heads = 4, .page_tokens = steps.plan.page_tokens}),
        batch(steps.plan, kChunk, kMaxNumSeqs, dispatcher),
        mirror(ops.memory(), steps.plan, kChunk, kMaxNumSeqs, steps.num_tokens + 2),
        tokens(chosen_tokens(steps, ops.memory())) {}

  const model::StepInputs& prepare(size_t index) {
    const schedule::StepPlan& step = steps.decodes[index];
    const model::StepInputs& inputs = batch.build(
        step, steps.scheduler, [](schedule::SeqId) { return false; }, nullptr);
    const model::StepInputs& mirrored = mirror.update(
        inputs, {.steady = batch.is_steady(), .chosen_token = step.seqs.front().tokens.front()});
    if (mirror.is_behind()) mirror.advance(ops, tokens.view().rows(static_cast<Index>(index), 1));
    ops.memory().synchronize();
    return mirrored;
  }

  Steps& steps;
  ops::Ops& ops;
  engine::Dispatcher dispatcher;
  engine::InputBatch batch;
  engine::InputMirror mirror;
  Buffer tokens;
};

std::string difference_at(Way& general, Way& steady, size_t index) {
  Memory& memory = general.ops.memory();
  const engine::InputCopy want = engine::copy_to_host(memory, general.prepare(index));
  const engine::InputCopy got = engine::copy_to_host(memory, steady.prepare(index));
  return engine::first_difference(want.inputs, got.inputs);
}

// Median over the rounds of the mean nanoseconds of a step.
double time_steps(Way& way, const InputPrepOptions& options) {
  const auto num_warm_up = static_cast<size_t>(options.num_warm_up);
  std::vector<double> rounds;
  for (int64_t round = 0; round < options.num_rounds; ++round) {
    for (size_t i = 0; i < num_warm_up; ++i) way.prepare(i);
    const auto started = std::chrono::steady_clock::now();
    for (size_t i = num_warm_up; i < way.steps.decodes.size(); ++i) way.prepare(i);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - started;
    rounds.push_back(took.count() / static_cast<double>(options.num_steps));
  }
  std::ranges::sort(rounds);
  return rounds[rounds.size() / 2];
}

}  // namespace

InputPrepResult measure_input_prep(const InputPrepOptions& options) {
  check(options);
  Steps steps(options);
  ops::Ops ops(make_backend(options.device_index));
  Way general(steps, ops, /*steady=*/false), steady(steps, ops, /*steady=*/true);
  InputPrepResult result{.num_groups = static_cast<int32_t>(steps.plan.groups.size()),
                         .device = options.device_index ? ops.name() : ""};
  for (size_t i = 0; i < steps.decodes.size(); ++i) {
    result.difference = difference_at(general, steady, i);
    if (!result.difference.empty()) return result;
    ++result.num_compared;
  }
  result.general_before_ns = time_steps(general, options);
  steady.batch.start_counting();
  steady.mirror.start_counting();
  result.steady_ns = time_steps(steady, options);
  result.num_dispatched = steady.batch.counters().num_dispatched;
  result.num_advanced = steady.mirror.counters().num_advanced;
  result.num_table_uploads = steady.mirror.counters().num_table_uploads;
  result.general_after_ns = time_steps(general, options);
  return result;
}

}  // namespace longspan::measure
