#include "measure/input_prep.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/input_batch.h"
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

// One of the two ways.
struct Way {
  Way(const cache::PagePlan& plan, bool steady)
      : dispatcher({.steady_decode_inputs = steady},
                   {.head_dim = 256, .num_q_heads = 24, .num_kv_heads = 4, .page_tokens = plan.page_tokens}),
        batch(plan, kChunk, kMaxNumSeqs, dispatcher) {}

  const model::StepInputs& build(const schedule::StepPlan& step, schedule::Scheduler& scheduler) {
    return batch.build(
        step, scheduler, [](schedule::SeqId) { return false; }, nullptr);
  }

  engine::Dispatcher dispatcher;
  engine::InputBatch batch;
};

// Median over the rounds of the mean nanoseconds of a step.
double time_steps(Way& way, Steps& steps, const InputPrepOptions& options) {
  std::vector<double> rounds;
  for (int64_t round = 0; round < options.num_rounds; ++round) {
    const auto begin = steps.decodes.begin() + options.num_warm_up;
    for (auto step = steps.decodes.begin(); step != begin; ++step) way.build(*step, steps.scheduler);
    const auto started = std::chrono::steady_clock::now();
    for (auto step = begin; step != steps.decodes.end(); ++step) way.build(*step, steps.scheduler);
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
  Way general(steps.plan, /*steady=*/false), steady(steps.plan, /*steady=*/true);
  InputPrepResult result{.num_groups = static_cast<int32_t>(steps.plan.groups.size())};
  for (const schedule::StepPlan& step : steps.decodes) {
    result.difference =
        engine::first_difference(general.build(step, steps.scheduler), steady.build(step, steps.scheduler));
    if (!result.difference.empty()) return result;
    ++result.num_compared;
  }
  result.general_before_ns = time_steps(general, steps, options);
  steady.batch.start_counting();
  result.steady_ns = time_steps(steady, steps, options);
  result.num_dispatched = steady.batch.counters().num_dispatched;
  result.general_after_ns = time_steps(general, steps, options);
  return result;
}

}  // namespace longspan::measure
