// Tokens that are drawn on the device: those of the host for the same seeds, and what is left to the host
// says why.
#include "engine/device_sampler.h"

#include <gtest/gtest.h>

#include "ops/device/backend.h"
#include "support/fixture.h"

namespace longspan {
namespace {

using engine::HostSampling;
using engine::SamplingParams;

constexpr int64_t kSampledTokens = 8;

engine::EngineOptions options_for(engine::DeviceKind device, int index = 0) {
  return {.model = testing::model_dir("hybrid_r3_tied"),
          .device = device,
          .device_index = index,
          .dtype = DType::kF32,
          .max_model_len = 128,
          .max_num_seqs = 3};
}

engine::Response submit(engine::Engine& engine, int32_t first_token, const SamplingParams& sampling) {
  return engine.submit({.prompt = {first_token, 7, 11},
                        .max_new_tokens = kSampledTokens,
                        .sampling = sampling,
                        .ignore_eos = true});
}
std::vector<int32_t> sampled_answer(engine::Engine& engine, int32_t first_token,
                                    const SamplingParams& sampling) {
  engine::Response response = submit(engine, first_token, sampling);
  return testing::collect(response).ids;
}

const std::vector<SamplingParams> kSampled = {
    {.temperature = 1, .seed = 1},
    {.temperature = 0.7, .top_k = 20, .top_p = 0.8, .seed = 2},
    {.temperature = 1.5, .top_p = 0.9, .seed = 3},
    {.temperature = 2, .min_p = 0.05, .seed = 4},
};

TEST(DeviceSampler, AnswersAreTheHosts) {
  engine::Engine host(options_for(engine::DeviceKind::kCpu));
  const bool on_emulator = std::string_view(ops::device::vendor_name()) == "emulator";
  for (int index = 0; index < (on_emulator ? 2 : 1); ++index) {  // its two have waves of 32 and 64
    engine::Engine device(options_for(engine::DeviceKind::kDevice, index));
    for (const SamplingParams& sampling : kSampled)
      EXPECT_EQ(sampled_answer(device, 9, sampling), sampled_answer(host, 9, sampling))
          << "seed " << *sampling.seed;
    EXPECT_EQ(device.status().sampling.num_on_device, std::ssize(kSampled) * (kSampledTokens - 1));
  }
  EXPECT_GT(host.status().sampling.on_host[static_cast<size_t>(HostSampling::kNoDevice)], 0);
}

TEST(DeviceSampler, AnswersDoNotDependOnWhoElseRuns) {
  engine::Engine device(options_for(engine::DeviceKind::kDevice));
  const std::vector<int32_t> alone = sampled_answer(device, 9, kSampled[1]);
  engine::Response with_greedy = submit(device, 50, {});
  engine::Response with_sampled = submit(device, 51, kSampled[2]);
  EXPECT_EQ(sampled_answer(device, 9, kSampled[1]), alone);
  testing::collect(with_greedy);
  testing::collect(with_sampled);
}

TEST(DeviceSampler, ASteadySampledStepCopiesNothingToTheDevice) {
  engine::Engine device(options_for(engine::DeviceKind::kDevice));
  sampled_answer(device, 9, kSampled[1]);
  const engine::EngineStatus status = device.status();
  EXPECT_EQ(status.sampling.num_on_device, kSampledTokens - 1);
  EXPECT_EQ(status.sampling.num_row_uploads, 1);
  EXPECT_EQ(status.mirror.num_advanced, kSampledTokens - 2);
  EXPECT_EQ(status.mirror.num_table_uploads, 0);
}

TEST(DeviceSampler, WhatTheHostDoesHasItsReason) {
  engine::Engine host(options_for(engine::DeviceKind::kCpu));
  engine::Engine device(options_for(engine::DeviceKind::kDevice));
  const auto count = [&](HostSampling why) {
    return device.status().sampling.on_host[static_cast<size_t>(why)];
  };
  const std::pair<HostSampling, SamplingParams> cases[] = {
      {HostSampling::kLogprobs, {.temperature = 1, .seed = 5, .num_logprobs = 1}},
      {HostSampling::kLogitBias, {.temperature = 1, .seed = 5, .logit_bias = {{3, 2.0f}}}},
      {HostSampling::kPenalties, {.temperature = 1, .repetition_penalty = 1.2, .seed = 5}},
  };
  for (const auto& [why, sampling] : cases) {
    EXPECT_EQ(sampled_answer(device, 9, sampling), sampled_answer(host, 9, sampling));
    EXPECT_EQ(count(why), kSampledTokens - 1) << engine::host_sampling(static_cast<size_t>(why));
  }
  sampled_answer(device, 9, {.temperature = 1, .seed = 5, .min_tokens = 4});
  EXPECT_EQ(count(HostSampling::kMinTokens), 3);  // the first token is the prompt's step
  EXPECT_EQ(count(HostSampling::kPrefill), 4);
  EXPECT_EQ(device.status().mirror.uploads[static_cast<size_t>(engine::UploadReason::kTokenOnHost)],
            3 * (kSampledTokens - 2) + 3);
}

}  // namespace
}  // namespace longspan
