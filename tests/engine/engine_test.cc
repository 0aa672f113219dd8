// Engine: the life of a request from submit() to the end, whichever way it ends.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "support/fixture.h"

namespace longspan {
namespace {

engine::EngineOptions tiny() { return {.model = testing::model_dir("tiny"), .max_model_len = 4096}; }

std::vector<int32_t> prompt(size_t num_tokens) {
  std::vector<int32_t> ids = testing::Reference("tiny").at(8).prompt;
  ids.resize(num_tokens);
  return ids;
}

ErrorKind refusal_of(engine::Engine& engine, engine::GenerateRequest request) {
  try {
    engine.submit(std::move(request));
  } catch (const Error& error) {
    return error.kind;
  }
  ADD_FAILURE() << "the request was taken";
  return ErrorKind::kInvalid;
}

TEST(Engine, RequestsThatCannotRunAreRefusedAtOnce) {
  engine::Engine engine(tiny());
  EXPECT_EQ(refusal_of(engine, {}), ErrorKind::kInvalid);
  EXPECT_EQ(refusal_of(engine, {.prompt = {1, 4096}}), ErrorKind::kInvalid);
  EXPECT_EQ(refusal_of(engine, {.prompt = std::vector<int32_t>(4096, 1)}), ErrorKind::kInvalid);
  EXPECT_EQ(refusal_of(engine, {.prompt = {1}, .sampling = {.top_p = 0}}), ErrorKind::kInvalid);
  std::vector<int32_t> all(4096);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(refusal_of(engine, {.prompt = {1}, .sampling = {.min_tokens = 1}, .stop_token_ids = all}),
            ErrorKind::kInvalid);
}

TEST(Engine, TheAnswerEndsAtTheContextsEnd) {
  engine::EngineOptions options = tiny();
  for (const int64_t max_model_len : {2, 3, 64, 65}) {  // the warm-up has no room in the first ones
    options.max_model_len = max_model_len;
    engine::Engine engine(options);
    const testing::Answer answer = testing::generate(engine, prompt(1), /*max_new_tokens=*/0);
    EXPECT_EQ(std::ssize(answer.ids), max_model_len - 1);
    EXPECT_EQ(answer.last.reason, engine::FinishReason::kLength);
    EXPECT_GT(engine.status().dispatch.hits[static_cast<size_t>(ops::AttentionPath::kUnified)], 0);
  }
}

TEST(Engine, TheWarmUpLeavesNoTrace) {
  engine::EngineOptions options = tiny();
  options.pages.prefix_caching = true;
  const engine::Engine engine(options);
  const engine::EngineStatus status = engine.status();
  EXPECT_EQ(status.schedule.num_steps, 0);
  EXPECT_EQ(status.schedule.num_prefill_tokens, 0);
  EXPECT_EQ(status.prefix.num_nodes, 0);
  EXPECT_EQ(status.pages.num_free, status.pages.num_pages);
  EXPECT_EQ(status.num_generated_tokens, 0);
}

// Of the last layer a chunk that ends inside its prompt leaves K and V, or the state, and nothing else;
// behind the mixer the last chunk goes on with the row that is sampled.
TEST(Engine, TheLastLayerSkipsWhatNobodyReads) {
  engine::EngineOptions options = tiny();
  options.max_num_batched_tokens = 128;
  engine::Engine engine(options);
  const auto trace = std::make_shared<engine::StepTrace>();
  ASSERT_TRUE(engine.set_trace(trace, std::chrono::seconds(10)));
  testing::generate(engine, prompt(300), /*max_new_tokens=*/1);  // 128, 128, 44
  ASSERT_TRUE(engine.set_trace(nullptr, std::chrono::seconds(10)));
  std::map<int32_t, int> attention_rows, gate_up_rows;  // by layer, over the chunks
  while (!trace->done())
    for (const engine::TraceEvent& event : trace->take(std::chrono::milliseconds(100))) {
      if (event.kind != engine::TraceEvent::Kind::kOp) continue;
      if (event.op.kind == ops::OpKind::kAttention) attention_rows[event.op.layer] += event.op.rows;
      if (event.op.kind == ops::OpKind::kMatmulSwiGlu) gate_up_rows[event.op.layer] += event.op.rows;
    }
  const auto last = static_cast<int32_t>(engine.info().config.num_layers()) - 1;
  for (const auto& [layer, rows] : gate_up_rows) EXPECT_EQ(rows, layer == last ? 1 : 300) << layer;
  EXPECT_EQ(std::ssize(gate_up_rows), last + 1);
  ASSERT_GE(attention_rows.size(), 2u);
  for (const auto& [layer, rows] : attention_rows) EXPECT_EQ(rows, layer == last ? 44 : 300) << layer;
}

// In a cache that every other prompt fills anew.
TEST(Engine, APinnedPrefixOutlivesEveryOther) {
  for (const cache::Layout layout : {cache::Layout::kUnified, cache::Layout::kSplit}) {
    engine::EngineOptions options = tiny();
    options.max_model_len = 512;
    options.max_num_seqs = 3;
    options.pages = {.alignment = 64, .layout = layout, .prefix_caching = true};
    options.max_pinned_tokens = 300;
    for (const bool pin : {true, false}) {
      engine::Engine engine(options);
      engine::Response first =
          engine.submit({.prompt = prompt(300), .max_new_tokens = 1, .ignore_eos = true, .pin_prefix = pin});
      const testing::Answer cold = testing::collect(first);
      EXPECT_EQ(cold.last.num_cached, 0);
      for (int32_t other = 1; other <= 6; ++other) {
        std::vector<int32_t> ids = prompt(450);
        ids.front() = 4000 + other;
        testing::generate(engine, ids, 1);
      }
      EXPECT_GT(engine.status().prefix.num_evicted_pages + engine.status().prefix.num_evicted_states, 0);
      const testing::Answer again = testing::generate(engine, prompt(300), 1);
      EXPECT_EQ(again.last.num_cached > 0, pin) << cache::to_string(layout);
      EXPECT_EQ(again.ids, cold.ids);
    }
  }
}

TEST(Engine, NoMoreIsPinnedThanThereIsRoomFor) {
  engine::EngineOptions options = tiny();
  options.pages.prefix_caching = true;
  options.max_pinned_tokens = 100;
  engine::Engine engine(options);
  EXPECT_EQ(refusal_of(engine, {.prompt = prompt(101), .max_new_tokens = 1, .pin_prefix = true}),
            ErrorKind::kInvalid);
}

// One may run and one may wait: both are taken before the first step, a third is not.
TEST(Engine, ABurstAtAnIdleEngineIsTakenWhole) {
  engine::EngineOptions options = tiny();
  options.max_num_seqs = 1;
  options.max_waiting = 1;
  engine::Engine engine(options);
  const engine::Response first = engine.submit({.prompt = prompt(4000), .max_new_tokens = 90});
  const engine::Response second = engine.submit({.prompt = prompt(4000), .max_new_tokens = 90});
  EXPECT_EQ(refusal_of(engine, {.prompt = {1}, .max_new_tokens = 1}), ErrorKind::kExhausted);
}

// Who was taken out of the inbox and waits in the scheduler still counts.
TEST(Engine, TheQueueLimitHoldsWhileAStepRuns) {
  engine::EngineOptions options = tiny();
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 256;
  options.max_waiting = 1;
  engine::Engine engine(options);
  const engine::Response running = engine.submit({.prompt = prompt(4000), .max_new_tokens = 90});
  while (engine.status().schedule.num_running == 0) std::this_thread::yield();
  const engine::Response waiting = engine.submit({.prompt = {1}, .max_new_tokens = 1});
  while (engine.status().num_inbox > 0) std::this_thread::yield();
  EXPECT_EQ(refusal_of(engine, {.prompt = {1}, .max_new_tokens = 1}), ErrorKind::kExhausted);
}

// The limit holds for the very first prompt beside a stream: the warm-up knows how long a chunk takes.
TEST(Engine, PromptChunksShrinkBesideAStreamFromTheStart) {
  engine::EngineOptions options = tiny();
  options.max_decode_stall_ms = 1e-3;  // no chunk is so fast: the smallest are taken
  engine::Engine engine(options);
  engine::Response stream = engine.submit({.prompt = prompt(10), .max_new_tokens = 3000, .ignore_eos = true});
  while (stream.wait(std::chrono::seconds(60)).tokens.empty()) {
  }
  const int64_t num_steps = engine.status().schedule.num_steps;
  testing::generate(engine, prompt(2048), 1);
  EXPECT_GE(engine.status().schedule.num_steps - num_steps, 2048 / 64);
}

TEST(Engine, PromptLogitsComeOnceThoughThePromptIsReplayed) {
  engine::EngineOptions options = tiny();
  options.max_model_len = 320;
  options.max_num_seqs = 4;
  options.pages = {.alignment = 64, .layout = cache::Layout::kSplit, .prefix_caching = true};
  const cache::MemoryPlan plan = engine::make_plan(options, engine::Purpose::kExplain).memory;
  options.cache_bytes = static_cast<size_t>(plan.slot_bytes * plan.num_state_slots + plan.page_bytes * 9);
  engine::Engine engine(options);
  std::vector<std::vector<int64_t>> positions(4);
  std::vector<engine::Response> responses;
  for (std::vector<int64_t>& seen : positions)
    responses.push_back(engine.submit(
        {.prompt = prompt(100),
         .max_new_tokens = 200,
         .ignore_eos = true,
         .on_prompt_logits = [&](int64_t position, const TensorView&) { seen.push_back(position); }}));
  for (engine::Response& response : responses) EXPECT_EQ(testing::collect(response).ids.size(), 200u);
  EXPECT_GT(engine.status().schedule.num_replays, 0);
  std::vector<int64_t> each_once(100);
  std::iota(each_once.begin(), each_once.end(), 0);
  for (const std::vector<int64_t>& seen : positions) EXPECT_EQ(seen, each_once);
}

TEST(Engine, AConsumerMayDropItsResponseWhenItIsTold) {
  std::optional<engine::Response> waiting;
  {
    engine::Engine engine(tiny());
    const engine::Response running = engine.submit({.prompt = prompt(4000), .max_new_tokens = 90});
    while (engine.status().schedule.num_running == 0) std::this_thread::yield();
    waiting.emplace(engine.submit({.prompt = {1}}, [&] { waiting.reset(); }));
  }  // the engine ends while it waits
  EXPECT_FALSE(waiting.has_value());
}

TEST(Engine, AStepThatFailsEndsEveryRequest) {
  engine::Engine engine(tiny());
  engine::Response bystander = engine.submit({.prompt = prompt(10), .ignore_eos = true});
  while (bystander.wait(std::chrono::seconds(60)).tokens.empty()) {
  }
  engine::Response culprit = engine.submit({.prompt = prompt(10), .on_prompt_logits = [](auto, auto&) {
                                              fail(ErrorKind::kEnvironment, "no room for logits");
                                            }});
  for (engine::Response* response : {&bystander, &culprit}) {
    const testing::Answer answer = testing::collect(*response);
    EXPECT_EQ(answer.last.reason, engine::FinishReason::kError);
    EXPECT_EQ(answer.last.error, "no room for logits");
  }
  EXPECT_FALSE(engine.status().healthy);
  EXPECT_EQ(engine.status().schedule.num_running, 0);
  EXPECT_EQ(engine.status().stalled_seconds, 0);
  EXPECT_EQ(refusal_of(engine, {.prompt = {1}}), ErrorKind::kEnvironment);
}

}  // namespace
}  // namespace longspan
