// Replayed decode steps on a device: the same tokens as step by step, and what is not replayed says why.
#include <gtest/gtest.h>

#include "support/fixture.h"

namespace longspan {
namespace {

engine::EngineOptions on_device(engine::ReplayMode mode) {
  return {.model = testing::model_dir("hybrid_r3_tied"),
          .device = engine::DeviceKind::kDevice,
          .dtype = DType::kF32,
          .max_model_len = 128,
          .max_num_seqs = 2,
          .replay = mode};
}

std::vector<int32_t> answer(engine::Engine& engine, int32_t first_token,
                            engine::SamplingParams sampling = {}) {
  engine::Response response = engine.submit({.prompt = {first_token, 7, 11},
                                             .max_new_tokens = 6,
                                             .sampling = std::move(sampling),
                                             .ignore_eos = true});
  std::vector<int32_t> ids;
  engine::ResponseUpdate update;
  do {
    update = response.wait(std::chrono::seconds(10));
    for (const engine::TokenOutput& token : update.tokens) ids.push_back(token.token);
  } while (!update.done);
  return ids;
}

int64_t misses(const engine::Engine& engine, engine::ReplayMiss why) {
  return engine.status().replays.misses[static_cast<size_t>(why)];
}

TEST(DecodeReplay, GivesTheTokensOfSingleSteps) {
  engine::Engine plain(on_device(engine::ReplayMode::kNone));
  engine::Engine replaying(on_device(engine::ReplayMode::kFullDecodeOnly));
  const int64_t before = replaying.status().replays.num_replayed;
  for (const int32_t first_token : {3, 50, 3})
    EXPECT_EQ(answer(replaying, first_token), answer(plain, first_token));
  EXPECT_EQ(plain.status().replays.num_replayed, 0);
  EXPECT_GT(misses(plain, engine::ReplayMiss::kSwitchedOff), 0);
  EXPECT_GE(replaying.status().replays.num_replayed, before + 12);  // of 15 decode steps
  EXPECT_GT(misses(replaying, engine::ReplayMiss::kPrefill), 0);
}

// Who draws needs the logits on the host, after the same replay.
TEST(DecodeReplay, ServesSamplersToo) {
  engine::Engine plain(on_device(engine::ReplayMode::kNone));
  engine::Engine replaying(on_device(engine::ReplayMode::kFullDecodeOnly));
  const engine::SamplingParams sampling{.temperature = 0.8, .top_k = 20, .seed = 5};
  EXPECT_EQ(answer(replaying, 9, sampling), answer(plain, 9, sampling));
  const engine::SamplingParams penalised{.repetition_penalty = 1.3};
  EXPECT_EQ(answer(replaying, 9, penalised), answer(plain, 9, penalised));
}

}  // namespace
}  // namespace longspan
