#include "io/weight_layout.h"

#include <algorithm>

#include "io/files.h"

namespace longspan::io {
namespace {

WeightLayout layout_of(const std::filesystem::path& directory) {
  return detect_weight_layout(TensorStore(directory), load_model_config(directory));
}

TEST(WeightFamily, SplitsByPrefixNotByLayerName) {
  EXPECT_EQ(weight_family("model.language_model.layers.0.mlp.up_proj.weight"), WeightFamily::kText);
  EXPECT_EQ(weight_family("lm_head.weight"), WeightFamily::kText);
  EXPECT_EQ(weight_family("model.visual.blocks.0.norm1.weight"), WeightFamily::kVisual);
  EXPECT_EQ(weight_family("vision_tower.blocks.0.norm1.weight"), WeightFamily::kVisual);
  EXPECT_EQ(weight_family("mtp.layers.0.mlp.up_proj.weight"), WeightFamily::kMtp);
  EXPECT_EQ(weight_family("model.mtp.layers.0.mlp.up_proj.weight"), WeightFamily::kMtp);
}

// 14 tensors a linear layer, 11 a full layer, embedding and final norm, lm_head where untied.
TEST(WeightLayout, CountsTheTextTensors) {
  const WeightLayout tied = layout_of(fixture("hybrid_r3_tied"));
  EXPECT_EQ(tied.prefix, "model.");
  EXPECT_EQ(tied.lm_head, "lm_head");
  EXPECT_FALSE(tied.norms_shifted);
  EXPECT_EQ(tied.text.size(), 3u * 14 + 11 + 2);
  EXPECT_EQ(layout_of(fixture("hybrid_r2_untied_sharded")).text.size(), 4u * 14 + 2 * 11 + 3);
  EXPECT_EQ(layout_of(fixture("dense_qwen3")).text.size(), 3u * 11 + 2);
  EXPECT_EQ(layout_of(fixture("dense_qwen2_bias")).text.size(), 3u * 12 + 3);
}

TEST(WeightLayout, LeavesVisionAndMtpOut) {
  const WeightLayout layout = layout_of(fixture("wrapped_multimodal"));
  EXPECT_EQ(layout.prefix, "model.language_model.");
  EXPECT_EQ(layout.text.size(), 3u * 14 + 11 + 3);
  EXPECT_GT(layout.num_visual, 0u);
  EXPECT_GT(layout.num_mtp, 0u);
  EXPECT_EQ(layout.text.size() + layout.num_visual + layout.num_mtp, 80u);
}

// A checkpoint of nothing but an embedding and the conv1d of each linear layer.
class ConvShapes : public testing::Test {
 protected:
  ConvShapes() {
    config_.layers = {LayerKind::kLinearAttention, LayerKind::kFullAttention, LayerKind::kLinearAttention};
    config_.linear_num_key_heads = config_.linear_num_value_heads = 1;
    config_.linear_key_head_dim = config_.linear_value_head_dim = 2;
    config_.linear_conv_kernel = 4;
  }
  WeightLayout detect(std::string_view prefix, Shape first, Shape third) {
    std::vector<float> data(64);
    const auto tensor = [&](std::string_view name, Shape shape) {
      return NamedTensor{fmt::format("{}{}", prefix, name), TensorView(data.data(), DType::kF32, shape)};
    };
    write_safetensors(directory_.path() / "model.safetensors",
                      std::vector{tensor("embed_tokens.weight", {2, 2}),
                                  tensor("layers.0.linear_attn.conv1d.weight", first),
                                  tensor("layers.2.linear_attn.conv1d.weight", third)});
    return detect_weight_layout(TensorStore(directory_.path()), config_);
  }

  ModelConfig config_;  // six conv channels
  TempDirectory directory_;
};

TEST_F(ConvShapes, TellTheTwoConventionsApart) {
  EXPECT_FALSE(detect("model.", {6, 1, 4}, {6, 1, 4}).norms_shifted);
  const WeightLayout mlx = detect("language_model.model.", {6, 4, 1}, {6, 4, 1});
  EXPECT_TRUE(mlx.norms_shifted);
  EXPECT_EQ(mlx.prefix, "language_model.model.");
  EXPECT_EQ(mlx.lm_head, "language_model.lm_head");
}

TEST_F(ConvShapes, AnythingElseIsRefused) {
  for (const Shape& bad : {Shape{6, 4}, Shape{6, 1, 3}, Shape{5, 1, 4}, Shape{4, 1, 6}, Shape{1, 6, 4}})
    EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                  [&] {
                                    detect("model.", bad, {6, 1, 4});
                                  }),
                         "need [6, 1, 4] or"));
}

TEST_F(ConvShapes, CountsALogValuesThatBfloat16CannotHold) {
  std::vector<float> data = {1.0f, 1.001f, -2.5f, 0.1f};
  std::vector<float> conv(24);
  config_.layers = {LayerKind::kLinearAttention};
  write_safetensors(
      directory_.path() / "model.safetensors",
      std::vector<NamedTensor>{
          {"model.embed_tokens.weight", TensorView(conv.data(), DType::kF32, {2, 2})},
          {"model.layers.0.linear_attn.conv1d.weight", TensorView(conv.data(), DType::kF32, {6, 1, 4})},
          {"model.layers.0.linear_attn.A_log", TensorView(data.data(), DType::kF32, {4})}});
  EXPECT_EQ(detect_weight_layout(TensorStore(directory_.path()), config_).num_a_log_beyond_bf16, 2u);
}

TEST_F(ConvShapes, AMixtureIsRefused) {
  const std::string message = error_of(ErrorKind::kInvalid, [&] { detect("model.", {6, 1, 4}, {6, 4, 1}); });
  EXPECT_TRUE(contains(message, "layers.0.linear_attn.conv1d.weight"));
  EXPECT_TRUE(contains(message, "layers.2.linear_attn.conv1d.weight"));
}

TEST_F(ConvShapes, AnUnknownPrefixIsRefused) {
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                [&] {
                                  detect("transformer.", {6, 1, 4}, {6, 1, 4});
                                }),
                       "model.embed_tokens.weight"));
}

}  // namespace
}  // namespace longspan::io
