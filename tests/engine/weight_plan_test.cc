// The memory plan against what loading takes: for every form of weights, on every kind of device, from files
// and from a seed.
#include <gtest/gtest.h>

#include "ops/cpu/backend.h"
#include "ops/device/backend.h"
#include "ops/reference/backend.h"
#include "support/fixture.h"
#include "support/gptq_twins.h"

namespace longspan {
namespace {

std::unique_ptr<ops::Backend> backend_of(const engine::EngineOptions& options) {
  if (options.device == engine::DeviceKind::kReference) return ops::reference::make_backend();
  if (options.device == engine::DeviceKind::kDevice)
    return ops::device::make_backend(options.device_index, engine::device_options(options));
  return ops::cpu::make_backend({.num_threads = 2});
}

std::vector<engine::EngineOptions> machines() {
  std::vector<engine::EngineOptions> all = {{.dtype = DType::kBF16},
                                            {.dtype = DType::kF32},
                                            {.device = engine::DeviceKind::kReference, .dtype = DType::kF32}};
  if (std::string_view(ops::device::vendor_name()) != "none")
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      all.push_back({.device = engine::DeviceKind::kDevice, .dtype = dtype});
  return all;
}

std::string text_of(const engine::EngineOptions& options) {
  return fmt::format("{} on {} in {}{}", options.model.filename().string(), static_cast<int>(options.device),
                     dtype_name(*options.dtype), options.random_seed ? ", random" : "");
}

size_t expect_planned(const engine::EngineOptions& options) {
  const engine::EngineInfo info = engine::make_plan(options, engine::Purpose::kExplain);
  ops::Ops ops(backend_of(options));
  size_t held = 0;
  if (options.random_seed) {
    model::WeightSource source(*options.random_seed, info.config, nullptr);
    held = model::Model(info.config, info.dtype, source, ops).weight_bytes();
  } else {
    const io::TensorStore store(options.model);
    model::WeightSource source(store, info.config, nullptr);
    held = model::Model(info.config, info.dtype, source, ops).weight_bytes();
  }
  EXPECT_EQ(info.weight_bytes, held) << text_of(options);
  return held;
}

TEST(WeightPlan, OfFilesIsWhatLoadingTakes) {
  for (const char* fixture :
       {"hybrid_r2_untied_sharded", "wrapped_multimodal", "dense_qwen2_bias", "quant_awq_g128",
        "quant_gptq_g128_sym", "quant_ct_g128_sym", "quant_ct_g32_asym", "quant_fp8_block128"})
    for (engine::EngineOptions options : machines()) {
      options.model = testing::model_dir(fixture);
      expect_planned(options);
    }
}

TEST(WeightPlan, OfPermutedGroupsToo) {
  const testing::GptqTwins twins(testing::model_dir("hybrid_r3_tied"), 32);
  for (engine::EngineOptions options : machines()) {
    options.model = twins.packed();
    expect_planned(options);
  }
}

TEST(WeightPlan, OfRandomWeightsIsWhatDrawingTakes) {
  for (const char* fixture :
       {"dense_qwen3", "quant_awq_g128", "quant_gptq_g128_sym", "quant_ct_g32_asym", "quant_fp8_block128"})
    for (engine::EngineOptions options : machines()) {
      options.model = testing::model_dir(fixture);
      options.random_seed = 3;
      const size_t held = expect_planned(options);
      if (std::string_view(fixture).starts_with("quant") &&
          options.device != engine::DeviceKind::kReference) {
        const engine::EngineInfo info = engine::make_plan(options, engine::Purpose::kExplain);
        EXPECT_LT(held, static_cast<size_t>(model::num_linear_weights(info.config)) * dtype_size(info.dtype))
            << text_of(options);
      }
    }
}

// A config.json alone, even of a form that nothing here reads.
TEST(WeightPlan, ExplainsAConfigWithoutWeights) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("longspan_plan_" + std::to_string(::getpid()) + ".json");
  nlohmann::json config =
      nlohmann::json::parse(std::ifstream(testing::model_dir("quant_awq_g128") / "config.json"));
  const auto bytes_with = [&](int bits) {
    config["quantization_config"]["bits"] = bits;
    std::ofstream(path) << config.dump();
    return engine::make_plan({.model = path, .dtype = DType::kBF16}, engine::Purpose::kExplain).weight_bytes;
  };
  EXPECT_LT(bytes_with(4), bytes_with(8));  // explained as dense
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace longspan
