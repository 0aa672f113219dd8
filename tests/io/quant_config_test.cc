#include "io/quant_config.h"

#include "io/files.h"
#include "io/json.h"
#include "io/model_config.h"

namespace longspan::io {
namespace {

QuantConfig quant_config_of(std::string_view text) {
  const Json json = parse_json(text, "q.json");
  return read_quant_config(JsonObject(json, "q.json"));
}
QuantConfig of_fixture(std::string_view name) { return load_model_config(fixture(name)).quantization; }

TEST(QuantConfig, ReadsTheFixtures) {
  const QuantConfig awq = of_fixture("quant_awq_g128");
  EXPECT_EQ(awq.method, QuantMethod::kAwq);
  EXPECT_EQ(awq.format, "gemm");
  EXPECT_EQ(awq.bits, 4);
  EXPECT_EQ(awq.group_size, 128);
  EXPECT_FALSE(awq.symmetric);
  EXPECT_TRUE(awq.ignore.empty());
  EXPECT_EQ(awq.source, "config.json: quantization_config");

  const QuantConfig gptq = of_fixture("quant_gptq_g128_sym");
  EXPECT_EQ(gptq.method, QuantMethod::kGptq);
  EXPECT_EQ(gptq.format, "gptq");
  EXPECT_TRUE(gptq.symmetric);
  EXPECT_FALSE(gptq.desc_act);
  EXPECT_FALSE(gptq.quantised_lm_head);

  const QuantConfig packed = of_fixture("quant_ct_g32_asym");
  EXPECT_EQ(packed.method, QuantMethod::kCompressedTensors);
  EXPECT_EQ(packed.format, "pack-quantized");
  ASSERT_EQ(packed.groups.size(), 1u);
  EXPECT_EQ(packed.groups[0].name, "group_0");
  EXPECT_EQ(packed.groups[0].targets, std::vector<std::string>{"Linear"});
  EXPECT_EQ(packed.groups[0].group_size, 32);
  EXPECT_EQ(packed.groups[0].strategy, "group");
  EXPECT_EQ(packed.groups[0].type, "int");
  EXPECT_EQ(packed.groups[0].actorder, "");
  EXPECT_FALSE(packed.groups[0].symmetric);
  EXPECT_FALSE(packed.groups[0].quantised_activations);
  EXPECT_EQ(packed.bits, 4);
  EXPECT_EQ(packed.group_size, 32);
  EXPECT_FALSE(packed.symmetric);
  EXPECT_EQ(packed.ignore, (std::vector<std::string>{"lm_head", "re:.*in_proj_[ab]$"}));
  EXPECT_TRUE(of_fixture("quant_ct_g128_sym").symmetric);

  const QuantConfig fp8 = of_fixture("quant_fp8_block128");
  EXPECT_EQ(fp8.method, QuantMethod::kFp8);
  EXPECT_EQ(fp8.format, "e4m3");
  EXPECT_EQ(fp8.block, (std::array<int, 2>{128, 128}));
  EXPECT_EQ(fp8.activation_scheme, "dynamic");
  EXPECT_EQ(fp8.ignore, std::vector<std::string>{"lm_head"});
}

TEST(QuantConfig, GptqExclusionsAreTheMinusPatterns) {
  const QuantConfig config = quant_config_of(
      R"({"quant_method":"gptq","bits":4,"group_size":-1,"desc_act":true,"checkpoint_format":"gptq_v2",
          "dynamic":{"-:.*attn.*":{},"+:.*mlp.*":{"bits":8}}})");
  EXPECT_EQ(config.format, "gptq_v2");
  EXPECT_TRUE(config.desc_act);
  EXPECT_EQ(config.group_size, -1);
  EXPECT_EQ(config.ignore, std::vector<std::string>{".*attn.*"});
}

TEST(QuantConfig, AutoRoundExclusionsAreTheModulesOfSixteenBits) {
  const QuantConfig config = quant_config_of(
      R"({"quant_method":"auto-round","packing_format":"auto_round:auto_gptq","bits":4,"group_size":128,"sym":true,
          "extra_config":{"a.in_proj_a":{"bits":16,"data_type":"fp"},"a.q_proj":{"bits":8}}})");
  EXPECT_EQ(config.method, QuantMethod::kAutoRound);
  EXPECT_EQ(config.format, "auto_round:auto_gptq");
  EXPECT_EQ(config.ignore, std::vector<std::string>{"a.in_proj_a"});
}

TEST(QuantConfig, OlderSideFilesHaveNoMethod) {
  EXPECT_EQ(quant_config_of(R"({"bits":4,"group_size":128,"desc_act":false,"sym":true})").method,
            QuantMethod::kGptq);
  const QuantConfig awq =
      quant_config_of(R"({"zero_point":true,"q_group_size":64,"w_bit":4,"version":"GEMM"})");
  EXPECT_EQ(awq.method, QuantMethod::kAwq);
  EXPECT_EQ(awq.format, "gemm");
  EXPECT_EQ(awq.bits, 4);
  EXPECT_EQ(awq.group_size, 64);
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid, [] { quant_config_of("{}"); }),
                       "q.json: quant_method: got nothing"));
}

TEST(QuantConfig, UnknownMethodsKeepTheirName) {
  const QuantConfig config = quant_config_of(R"({"quant_method":"BitsAndBytes"})");
  EXPECT_EQ(config.method, QuantMethod::kOther);
  EXPECT_EQ(config.method_name, "bitsandbytes");
  EXPECT_TRUE(config.quantised());
}

TEST(QuantConfig, WrongTypesAreRefused) {
  for (const char* text :
       {R"({"quant_method":1})", R"({"quant_method":"awq","bits":"4"})", R"({"quant_method":"awq","bits":0})",
        R"({"quant_method":"awq","group_size":-2})", R"({"quant_method":"awq","modules_to_not_convert":[1]})",
        R"({"quant_method":"fp8","weight_block_size":[128]})",
        R"({"quant_method":"fp8","weight_block_size":[0,128]})",
        R"({"quant_method":"fp8","weight_block_size":[128,-1]})",
        R"({"quant_method":"compressed-tensors","config_groups":[]})",
        R"({"quant_method":"compressed-tensors","config_groups":{"g":1}})",
        R"({"quant_method":"gptq","dynamic":[]})",
        R"({"quant_method":"auto-round","extra_config":{"a":16}})"})
    error_of(ErrorKind::kInvalid, [&] { quant_config_of(text); });
}

class QuantConfigPlaces : public testing::Test {
 protected:
  QuantConfigPlaces()
      : json_(parse_json(read_text_file(fixture("wrapped_multimodal/config.json")), "config.json")) {}
  QuantConfig load() {
    directory_.write("config.json", json_.dump());
    return load_model_config(directory_.path()).quantization;
  }

  const Json awq_ = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}};
  const Json gptq_ = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  Json json_;
  TempDirectory directory_;
};

TEST_F(QuantConfigPlaces, TopLevelThenTextConfigThenSideFiles) {
  EXPECT_EQ(load().method, QuantMethod::kNone);
  directory_.write("quantization_config.json", awq_.dump());
  EXPECT_EQ(load().source, "quantization_config.json");
  directory_.write("quantize_config.json", gptq_.dump());
  EXPECT_EQ(load().source, "quantize_config.json");
  EXPECT_EQ(load().group_size, 32);
  json_["text_config"]["quantization_config"] = awq_;
  EXPECT_EQ(load().source, "config.json: text_config: quantization_config");
  json_["quantization_config"] = gptq_;
  EXPECT_EQ(load().method, QuantMethod::kGptq);
}

TEST_F(QuantConfigPlaces, MlxHasItsOwnKeyAndNoMethod) {
  json_["quantization"] = {{"group_size", 64}, {"bits", 4}, {"mode", "affine"}};
  EXPECT_EQ(load().method, QuantMethod::kOther);
  EXPECT_EQ(load().method_name, "mlx");
}

TEST_F(QuantConfigPlaces, CompressedTensorsHadAnOlderKey) {
  json_["compression_config"] = {{"format", "pack-quantized"}, {"config_groups", Json::object()}};
  EXPECT_EQ(load().method, QuantMethod::kCompressedTensors);
}

TEST_F(QuantConfigPlaces, NullIsAbsent) {
  json_["quantization_config"] = nullptr;
  EXPECT_FALSE(load().quantised());
}

}  // namespace
}  // namespace longspan::io
