#include "io/quantized_linear.h"

#include "core/buffer.h"
#include "io/files.h"
#include "io/model_config.h"
#include "io/weight_layout.h"

namespace longspan::io {
namespace {

QuantSurvey survey_of(std::string_view name) {
  const TensorStore store(fixture(name));
  const ModelConfig config = load_model_config(fixture(name));
  return survey_quantisation(store, config.quantization, detect_weight_layout(store, config).text);
}

TEST(QuantizedLinear, TheFixturesAreWhatTheirNamesSay) {
  const QuantSurvey awq = survey_of("quant_awq_g128");
  const LinearLayout& down = awq.quantised.at("model.layers.0.mlp.down_proj");
  EXPECT_EQ(down.form, LinearForm::kAwq);
  EXPECT_EQ(down.out_features, 128);
  EXPECT_EQ(down.in_features, 256);
  EXPECT_EQ(down.group_size, 128);
  EXPECT_EQ(down.num_groups(), 2);
  EXPECT_TRUE(down.has_zeros);
  EXPECT_EQ(awq.quantised.count("model.layers.0.linear_attn.in_proj_a"), 0);
  EXPECT_TRUE(contains(awq.describe(), "awq (group 128, zeros)"));

  const LinearLayout gptq = survey_of("quant_gptq_g128_sym").quantised.at("model.layers.0.mlp.down_proj");
  EXPECT_EQ(gptq.form, LinearForm::kGptq);
  EXPECT_EQ(gptq.zero_offset, 1);
  EXPECT_EQ(gptq.group_index, "model.layers.0.mlp.down_proj.g_idx");

  const LinearLayout packed = survey_of("quant_ct_g32_asym").quantised.at("model.layers.0.mlp.down_proj");
  EXPECT_EQ(packed.form, LinearForm::kPacked);
  EXPECT_EQ(packed.group_size, 32);
  EXPECT_TRUE(packed.has_zeros);

  const LinearLayout fp8 = survey_of("quant_fp8_block128").quantised.at("model.layers.0.mlp.down_proj");
  EXPECT_EQ(fp8.form, LinearForm::kFp8);
  EXPECT_EQ(fp8.scale_rows, 128);
  EXPECT_EQ(fp8.group_size, 128);
}

TEST(QuantizedLinear, DenseModelsHaveNone) {
  const QuantSurvey survey = survey_of("hybrid_r3_tied");
  EXPECT_TRUE(survey.quantised.empty());
  EXPECT_EQ(survey.describe(), "");
  EXPECT_TRUE(survey.dense_against_config.empty());
}

TEST(QuantizedLinear, TensorsWinOverTheConfig) {
  const TensorStore store(fixture("hybrid_r3_tied"));
  const ModelConfig config = load_model_config(fixture("hybrid_r3_tied"));
  const QuantConfig awq{.method = QuantMethod::kAwq, .method_name = "awq", .ignore = {"layers.0.", "attn"}};
  const QuantSurvey survey = survey_quantisation(store, awq, detect_weight_layout(store, config).text);
  EXPECT_TRUE(survey.quantised.empty());
  ASSERT_FALSE(survey.dense_against_config.empty());
  for (const std::string& module : survey.dense_against_config)
    EXPECT_TRUE(module.find(".mlp.") != std::string::npos && !module.starts_with("model.layers.0."))
        << module;
}

TEST(QuantizedLinear, EachMethodNamesModulesItsOwnWay) {
  const auto left = [](QuantMethod method, std::vector<std::string> ignore, const char* module) {
    return left_dense({.method = method, .ignore = std::move(ignore)}, module);
  };
  EXPECT_TRUE(left(QuantMethod::kAwq, {"in_proj_a"}, "model.layers.0.in_proj_a"));
  EXPECT_TRUE(left(QuantMethod::kFp8, {"lm_head"}, "lm_head"));
  EXPECT_TRUE(left(QuantMethod::kCompressedTensors, {"lm_head"}, "lm_head"));
  EXPECT_FALSE(left(QuantMethod::kCompressedTensors, {"lm_head"}, "model.lm_head"));
  EXPECT_TRUE(left(QuantMethod::kCompressedTensors, {"re:.*in_proj_[ab]$"}, "model.in_proj_b"));
  EXPECT_FALSE(left(QuantMethod::kCompressedTensors, {"re:in_proj_[ab]$"}, "model.in_proj_b"));
  EXPECT_TRUE(left(QuantMethod::kGptq, {".*attn.*"}, "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(left(QuantMethod::kGptq, {"(unclosed"}, "model.layers.0.self_attn.q_proj"));
}

// One layer "m" of hand-made tensors; returns the refusal.
struct Tensor {
  const char* suffix;
  DType dtype;
  Shape shape;
};
std::string refusal(ErrorKind kind, const QuantConfig& config, const std::vector<Tensor>& tensors) {
  const TempDirectory directory;
  std::vector<Buffer> buffers;
  std::vector<NamedTensor> named;
  for (const Tensor& tensor : tensors) {
    buffers.emplace_back(tensor.dtype, tensor.shape);
    named.push_back({std::string("m.") + tensor.suffix, buffers.back().view()});
  }
  write_safetensors(directory.path() / "model.safetensors", named);
  const TensorStore store(directory.path());
  return error_of(kind, [&] { find_linear(store, config, "m"); });
}

TEST(QuantizedLinear, OtherFormsAreRefusedByName) {
  const QuantConfig none;
  const QuantConfig awq{.method = QuantMethod::kAwq, .method_name = "awq", .format = "gemm"};
  const QuantConfig gptq{.method = QuantMethod::kGptq, .method_name = "gptq", .format = "gptq"};
  const std::vector<Tensor> awq_layer = {
      {"qweight", DType::kI32, {64, 4}}, {"qzeros", DType::kI32, {2, 4}}, {"scales", DType::kF16, {2, 32}}};
  const std::vector<Tensor> gptq_layer = {
      {"qweight", DType::kI32, {8, 32}}, {"qzeros", DType::kI32, {2, 4}}, {"scales", DType::kF16, {2, 32}}};
  const ErrorKind kind = ErrorKind::kUnsupported;
  EXPECT_TRUE(contains(refusal(kind, gptq, awq_layer), "shape is that of awq"));
  EXPECT_TRUE(contains(refusal(kind, awq, gptq_layer), "says awq; the shape is that of gptq"));
  EXPECT_TRUE(contains(refusal(kind, none, gptq_layer), "config.json says nothing of it"));
  EXPECT_TRUE(contains(
      refusal(kind, {.method = QuantMethod::kAwq, .method_name = "awq", .format = "gemv"}, awq_layer),
      "awq version gemv"));
  EXPECT_TRUE(
      contains(refusal(kind, awq, {{"qweight", DType::kI32, {64, 8}}, {"scales", DType::kF16, {2, 32}}}),
               "8-bit codes"));
  EXPECT_TRUE(contains(refusal(kind, none,
                               {{"weight_packed", DType::kU8, {32, 32}},
                                {"weight_scale", DType::kF8E4M3, {32, 4}},
                                {"weight_global_scale", DType::kF32, {1}}}),
                       "NVFP4"));
  EXPECT_TRUE(contains(
      refusal(kind, none, {{"weight", DType::kF8E4M3, {32, 64}}, {"weight_scale", DType::kF32, {1}}}),
      "weight_scale_inv"));
  EXPECT_TRUE(contains(
      refusal(kind, none, {{"weight", DType::kU32, {32, 8}}, {"scales", DType::kF16, {32, 1}}}), "uint32"));
  EXPECT_TRUE(
      contains(refusal(ErrorKind::kInvalid, none, {{"bias", DType::kF32, {4}}}), "m.weight is missing"));
}

}  // namespace
}  // namespace longspan::io
