// Past the last cache only the rows that are sampled are computed: the bits they have when all rows are.
#include <gtest/gtest.h>

#include "support/fixture.h"

namespace longspan {
namespace {

using Logprobs = std::vector<std::vector<engine::Logprob>>;  // of each token, the best ones

Logprobs collect(engine::Response& response) {
  Logprobs all;
  engine::ResponseUpdate update;
  do {
    update = response.wait(std::chrono::minutes(2));
    for (engine::TokenOutput& token : update.tokens) all.push_back(std::move(token.top));
  } while (!update.done);
  return all;
}

engine::GenerateRequest request(const std::vector<int32_t>& prompt) {
  return {.prompt = prompt, .max_new_tokens = 3, .sampling = {.num_logprobs = 20}, .ignore_eos = true};
}

void expect_same(const Logprobs& got, const Logprobs& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size()) << what;
    for (size_t j = 0; j < want[i].size(); ++j) {
      EXPECT_EQ(got[i][j].token, want[i][j].token) << what << ", token " << i;
      EXPECT_EQ(got[i][j].logprob, want[i][j].logprob) << what << ", token " << i;
    }
  }
}

struct LastLayerSetting {
  const char* fixture;
  engine::DeviceKind device;
};

class SampledRows : public ::testing::TestWithParam<LastLayerSetting> {};

TEST_P(SampledRows, HaveTheBitsOfAllRows) {
  engine::EngineOptions options{.model = testing::model_dir(GetParam().fixture),
                                .device = GetParam().device,
                                .dtype = DType::kBF16,
                                .max_model_len = 256,
                                .max_num_seqs = 4};
  options.max_num_batched_tokens = 64;  // the longest prompt takes two chunks, the first without a sample
  engine::Engine engine(options);
  std::vector<std::vector<int32_t>> prompts;
  for (const int length : {17, 1, 70}) {
    prompts.emplace_back();
    for (int i = 0; i < length; ++i) prompts.back().push_back((i * 37 + 11 * length) % 100);
  }
  std::vector<Logprobs> want;  // alone, the logits of every prompt row asked for
  for (const auto& prompt : prompts) {
    engine::GenerateRequest all_rows = request(prompt);
    all_rows.on_prompt_logits = [](int64_t, const TensorView&) {};
    engine::Response response = engine.submit(std::move(all_rows));
    want.push_back(collect(response));
  }
  std::vector<engine::Response> together;  // decode rows beside chunks
  for (const auto& prompt : prompts) together.push_back(engine.submit(request(prompt)));
  for (size_t i = 0; i < prompts.size(); ++i)
    expect_same(collect(together[i]), want[i], fmt::format("prompt of {} tokens", prompts[i].size()));
}

std::vector<LastLayerSetting> last_layer_settings() {
  std::vector<LastLayerSetting> all;
  // Last layers of both kinds, biases, and weights in few bits. (An emulated device takes 10 s for those.)
  for (const char* fixture :
       {"hybrid_r1_mixed_layers", "hybrid_r3_tied", "dense_qwen2_bias", "quant_awq_g128"})
    for (const auto device : {engine::DeviceKind::kCpu, engine::DeviceKind::kDevice})
      all.push_back({fixture, device});
  all.push_back({"quant_fp8_block128", engine::DeviceKind::kCpu});
  return all;
}

INSTANTIATE_TEST_SUITE_P(LastLayer, SampledRows, ::testing::ValuesIn(last_layer_settings()),
                         [](const auto& setting) {
                           return std::string(setting.param.fixture) +
                                  (setting.param.device == engine::DeviceKind::kCpu ? "_cpu" : "_device");
                         });

}  // namespace
}  // namespace longspan
