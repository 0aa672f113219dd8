#include "io/model_config.h"

#include <algorithm>
#include <functional>

#include "io/files.h"
#include "io/json.h"

namespace longspan::io {
namespace {

constexpr LayerKind kFull = LayerKind::kFullAttention;
constexpr LayerKind kLinear = LayerKind::kLinearAttention;

Json config_of(std::string_view name) {
  return parse_json(read_text_file(fixture(name) / "config.json"), "config.json");
}
ModelConfig parsed(const Json& json) { return parse_model_config(json.dump()); }
std::string refusal(ErrorKind kind, const Json& json) {
  return error_of(kind, [&] { parsed(json); });
}

// Every test starts from a valid file and changes what it is about.
Json flat() { return config_of("hybrid_r3_tied"); }
Json wrapped() { return config_of("wrapped_multimodal"); }
Json with(Json json, std::string_view key, const Json& value) {
  json[std::string(key)] = value;
  return json;
}
Json without(Json json, std::string_view key) {
  json.erase(std::string(key));
  return json;
}

TEST(ModelConfig, ReadsTheLargestPublishedDenseHybrid) {
  const ModelConfig config = load_model_config(fixture("model-configs/qwen3.5-27b"));
  EXPECT_EQ(config.architecture, Architecture::kQwen3_5);
  EXPECT_EQ(config.architecture_name, "Qwen3_5ForConditionalGeneration");
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.vocab_size, 248320);
  EXPECT_EQ(config.hidden_size, 5120);
  EXPECT_EQ(config.intermediate_size, 17408);
  EXPECT_EQ(config.max_position_embeddings, 262144);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.num_layers(), 64);
  EXPECT_EQ(config.num_layers_of(kFull), 16);
  EXPECT_EQ(config.num_layers_of(kLinear), 48);
  EXPECT_EQ(config.layers[3], kFull);
  EXPECT_EQ(config.layers[4], kLinear);
  EXPECT_EQ(config.num_q_heads, 24);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.q_width(), 6144);
  EXPECT_EQ(config.kv_width(), 1024);
  EXPECT_EQ(config.rope_theta, 1e7);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.mrope_section, (std::array<int64_t, 3>{11, 11, 10}));
  EXPECT_EQ(config.linear_key_width(), 2048);
  EXPECT_EQ(config.linear_value_width(), 6144);
  EXPECT_EQ(config.conv_channels(), 10240);
  EXPECT_EQ(config.linear_conv_kernel, 4);
  EXPECT_EQ(config.norm, NormKind::kZeroCentered);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(config.attn_output_gate);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{248044});
  EXPECT_FALSE(config.quantization.quantised());
}

// Sizes of the published table: hidden, layers (full), query heads, value heads, conv channels, tie.
TEST(ModelConfig, ReadsThePublishedSizes) {
  struct Row {
    const char* name;
    int64_t hidden, layers, full, q_heads, v_heads, channels;
    bool tie;
  };
  for (const Row& row :
       {Row{"0.8b", 1024, 24, 6, 8, 16, 6144, true}, Row{"4b", 2560, 32, 8, 16, 32, 8192, true},
        Row{"9b", 4096, 32, 8, 16, 32, 8192, false}, Row{"27b", 5120, 64, 16, 24, 48, 10240, false}}) {
    const ModelConfig config = load_model_config(fixture(fmt::format("model-configs/qwen3.5-{}", row.name)));
    EXPECT_EQ(config.hidden_size, row.hidden) << row.name;
    EXPECT_EQ(config.num_layers(), row.layers) << row.name;
    EXPECT_EQ(config.num_layers_of(kFull), row.full) << row.name;
    EXPECT_EQ(config.num_q_heads, row.q_heads) << row.name;
    EXPECT_EQ(config.linear_num_value_heads, row.v_heads) << row.name;
    EXPECT_EQ(config.conv_channels(), row.channels) << row.name;
    EXPECT_EQ(config.tie_word_embeddings, row.tie) << row.name;
  }
}

TEST(ModelConfig, ReadsTheBundledModel) {
  const ModelConfig config = load_model_config(bundled_model());
  EXPECT_EQ(config.num_layers(), 8);
  EXPECT_EQ(config.vocab_size, 4096);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rotary_dim, 64);
}

TEST(ModelConfig, ReadsTheNestedForm) {
  const ModelConfig config = parsed(wrapped());
  EXPECT_EQ(config.architecture_name, "Qwen3_5ForConditionalGeneration");
  EXPECT_EQ(config.hidden_size, 96);
  EXPECT_EQ(config.rope_theta, 1e7);  // and not the vision tower's
  EXPECT_EQ(config.dtype, DType::kBF16);
}

TEST(ModelConfig, ReadsTheDenseRelatives) {
  const ModelConfig qwen3 = load_model_config(fixture("dense_qwen3"));
  EXPECT_EQ(qwen3.architecture, Architecture::kQwen3);
  EXPECT_EQ(qwen3.norm, NormKind::kPlain);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_FALSE(qwen3.attn_output_gate);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.rotary_dim, 128);
  EXPECT_EQ(qwen3.num_layers_of(kFull), 3);
  EXPECT_EQ(qwen3.conv_channels(), 0);

  const ModelConfig qwen2 = load_model_config(fixture("dense_qwen2_bias"));
  EXPECT_EQ(qwen2.architecture, Architecture::kQwen2);
  EXPECT_EQ(qwen2.norm, NormKind::kPlain);
  EXPECT_FALSE(qwen2.qk_norm);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_EQ(qwen2.head_dim, 32);  // absent: hidden_size / num_attention_heads
  EXPECT_EQ(qwen2.rotary_dim, 32);
}

TEST(ModelConfig, RotaryShareComesFromRopeParameters) {
  EXPECT_EQ(load_model_config(fixture("hybrid_r2_untied_sharded")).rotary_dim,
            32);  // the flat field says 0.25 of 64
  EXPECT_EQ(load_model_config(fixture("hybrid_r1_mixed_layers")).rotary_dim, 32);  // all of 32
}

TEST(ModelConfig, RopeFieldsLieInThreePlaces) {
  const Json parameters = {{"rope_theta", 3e6},
                           {"partial_rotary_factor", 0.5},
                           {"mrope_section", {1, 2, 3}},
                           {"rope_type", "default"}};
  const Json other = {
      {"rope_theta", 4e6}, {"partial_rotary_factor", 1.0}, {"mrope_section", {4, 5, 6}}, {"type", "mrope"}};
  Json json = without(without(flat(), "rope_parameters"), "partial_rotary_factor");

  Json only_scaling = with(json, "rope_scaling", other);
  EXPECT_EQ(parsed(only_scaling).rope_theta, 4e6);
  EXPECT_EQ(parsed(only_scaling).rotary_dim, 64);
  EXPECT_EQ(parsed(only_scaling).mrope_section, (std::array<int64_t, 3>{4, 5, 6}));

  Json flat_and_scaling = only_scaling;
  flat_and_scaling.update(parameters);
  EXPECT_EQ(parsed(flat_and_scaling).rope_theta, 3e6);
  EXPECT_EQ(parsed(flat_and_scaling).rotary_dim, 32);
  EXPECT_EQ(parsed(flat_and_scaling).mrope_section, (std::array<int64_t, 3>{1, 2, 3}));

  Json everywhere = with(flat_and_scaling, "rope_parameters", {{"rope_theta", 5e6}});
  EXPECT_EQ(parsed(everywhere).rope_theta, 5e6);
  EXPECT_EQ(parsed(everywhere).rotary_dim, 32);  // field by field: this one is flat only
}

TEST(ModelConfig, RopeDefaults) {
  const Json bare = without(without(flat(), "rope_parameters"), "partial_rotary_factor");
  const ModelConfig hybrid = parsed(with(bare, "rope_theta", 10000000));
  EXPECT_EQ(hybrid.rotary_dim, 16);  // a quarter
  EXPECT_EQ(hybrid.mrope_section, (std::array<int64_t, 3>{11, 11, 10}));
  const Json qwen3 = without(config_of("dense_qwen3"), "rope_parameters");
  EXPECT_EQ(parsed(with(with(qwen3, "rope_theta", 1e6), "rope_scaling", nullptr)).rotary_dim, 128);  // all
  EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, bare), "rope_theta: got nothing"));
}

TEST(ModelConfig, ScaledRopeIsRefusedByName) {
  const Json bare = without(flat(), "rope_parameters");
  const Json theta = with(bare, "rope_theta", 1e7);
  for (const char* key : {"rope_type", "type"}) {
    const Json json = with(theta, "rope_scaling", {{key, "yarn"}, {"factor", 4.0}});
    EXPECT_TRUE(contains(refusal(ErrorKind::kUnsupported, json), "rope_type: got yarn, need default"));
  }
  refusal(ErrorKind::kUnsupported, with(theta, "rope_type", "linear"));
  Json nested = flat();
  nested["rope_parameters"]["rope_type"] = "longrope";
  refusal(ErrorKind::kUnsupported, nested);
  EXPECT_NO_THROW(parsed(
      with(flat(), "rope_scaling", {{"rope_type", "yarn"}})));  // rope_parameters says default and wins
}

TEST(ModelConfig, LayerTypesAreDerivedWhereAbsent) {
  EXPECT_EQ(parsed(without(flat(), "layer_types")).layers, parsed(flat()).layers);
  EXPECT_EQ(parsed(without(config_of("hybrid_head256"), "layer_types")).layers,
            parsed(config_of("hybrid_head256")).layers);
  const Json every_second = with(without(flat(), "layer_types"), "full_attention_interval", 2);
  EXPECT_EQ(parsed(every_second).layers, (std::vector{kLinear, kFull, kLinear, kFull}));
  EXPECT_EQ(parsed(without(config_of("dense_qwen3"), "layer_types")).layers, std::vector(3, kFull));
}

TEST(ModelConfig, AGivenListBeatsTheInterval) {
  const ModelConfig config =
      load_model_config(fixture("hybrid_r1_mixed_layers"));  // full_attention_interval 4 beside it
  EXPECT_EQ(config.layers, (std::vector{kFull, kLinear, kLinear, kFull, kLinear}));
}

TEST(ModelConfig, BadLayerListsAreRefused) {
  EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, with(flat(), "num_hidden_layers", 5)),
                       "got 4 entries, need num_hidden_layers 5"));
  Json json = flat();
  json["layer_types"][1] = "sliding_attention";
  EXPECT_TRUE(contains(refusal(ErrorKind::kUnsupported, json), "layer_types: got sliding_attention"));
  json = config_of("dense_qwen3");
  json["layer_types"][1] = "linear_attention";
  refusal(ErrorKind::kUnsupported, json);
}

TEST(ModelConfig, EitherLevelTiesTheEmbeddings) {
  for (bool top : {false, true}) {
    for (bool text : {false, true}) {
      Json json = with(wrapped(), "tie_word_embeddings", top);
      json["text_config"]["tie_word_embeddings"] = text;
      EXPECT_EQ(parsed(json).tie_word_embeddings, top || text) << top << text;
    }
  }
  Json json = without(wrapped(), "tie_word_embeddings");
  json["text_config"].erase("tie_word_embeddings");
  EXPECT_FALSE(parsed(json).tie_word_embeddings);
  json["tie_word_embeddings"] = true;
  EXPECT_TRUE(parsed(json).tie_word_embeddings);
}

TEST(ModelConfig, DTypeHasTwoNamesAndTwoPlaces) {
  EXPECT_EQ(parsed(with(flat(), "dtype", "float32")).dtype, DType::kF32);
  EXPECT_EQ(parsed(with(without(flat(), "dtype"), "torch_dtype", "float16")).dtype, DType::kF16);
  Json json = with(wrapped(), "dtype", "float32");
  json["text_config"]["dtype"] = "float16";
  EXPECT_EQ(parsed(json).dtype, DType::kF16);
  EXPECT_EQ(parsed(without(flat(), "dtype")).dtype, DType::kBF16);
  EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, with(flat(), "dtype", "int8")), "got \"int8\""));
}

TEST(ModelConfig, EosIsANumberAListOrNothing) {
  EXPECT_EQ(parsed(with(flat(), "eos_token_id", {5, 6})).eos_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_TRUE(parsed(with(flat(), "eos_token_id", nullptr)).eos_ids.empty());
  Json json = wrapped();
  json["text_config"].erase("eos_token_id");
  EXPECT_EQ(parsed(with(json, "eos_token_id", 9)).eos_ids, std::vector<int32_t>{9});
  refusal(ErrorKind::kInvalid, with(flat(), "eos_token_id", -1));
}

TEST(ModelConfig, OtherArchitecturesAreRefusedByName) {
  const auto refused = [](const char* name) {
    return refusal(ErrorKind::kUnsupported, with(flat(), "architectures", {name}));
  };
  const std::string message = refused("LlamaForCausalLM");
  EXPECT_TRUE(contains(message, "LlamaForCausalLM"));
  EXPECT_TRUE(contains(
      message, "Qwen3_5ForConditionalGeneration, Qwen3_5ForCausalLM, Qwen3ForCausalLM, Qwen2ForCausalLM"));
  EXPECT_TRUE(contains(refused("Qwen3_5MoeForConditionalGeneration"), "a mixture of experts"));
  EXPECT_TRUE(contains(refused("Qwen3MoeForCausalLM"), "a mixture of experts"));
  refused("Qwen3NextForCausalLM");
}

TEST(ModelConfig, ModelTypeStandsInForMissingArchitectures) {
  for (const char* type : {"qwen3_5", "qwen3_5_text"})
    EXPECT_EQ(parsed(with(without(flat(), "architectures"), "model_type", type)).architecture,
              Architecture::kQwen3_5);
  EXPECT_EQ(parsed(without(config_of("dense_qwen2_bias"), "architectures")).architecture,
            Architecture::kQwen2);
  EXPECT_EQ(parsed(with(config_of("dense_qwen3"), "architectures", Json::array())).architecture,
            Architecture::kQwen3);
  EXPECT_TRUE(contains(refusal(ErrorKind::kUnsupported,
                               with(without(flat(), "architectures"), "model_type", "qwen3_5_moe_text")),
                       "model_type: got qwen3_5_moe_text (a mixture of experts)"));
  refusal(ErrorKind::kInvalid, without(without(flat(), "architectures"), "model_type"));
}

TEST(ModelConfig, AWrongModelTypeInsideTextConfigIsHarmless) {
  Json json = wrapped();
  json["text_config"]["model_type"] = "qwen3_5";
  EXPECT_EQ(parsed(json).architecture, Architecture::kQwen3_5);
}

TEST(ModelConfig, FeaturesThatChangeTheAnswerAreRefused) {
  EXPECT_TRUE(contains(refusal(ErrorKind::kUnsupported, with(flat(), "hidden_act", "gelu")),
                       "hidden_act: got gelu, need silu"));
  EXPECT_TRUE(
      contains(refusal(ErrorKind::kUnsupported, with(flat(), "num_experts", 8)), "num_experts: got 8"));
  EXPECT_NO_THROW(parsed(with(flat(), "num_experts", 0)));
  refusal(ErrorKind::kUnsupported, with(flat(), "attention_bias", true));
  const Json window = with(config_of("dense_qwen2_bias"), "sliding_window", 4096);
  EXPECT_NO_THROW(parsed(window));  // use_sliding_window is false
  EXPECT_TRUE(
      contains(refusal(ErrorKind::kUnsupported, with(window, "use_sliding_window", true)), "sliding window"));
}

TEST(ModelConfig, TheOutputGateIsSiluByAnyName) {
  EXPECT_NO_THROW(parsed(with(flat(), "output_gate_type", "silu")));
  EXPECT_NO_THROW(parsed(with(flat(), "output_gate_type", "swish")));
  EXPECT_TRUE(contains(refusal(ErrorKind::kUnsupported, with(flat(), "output_gate_type", "sigmoid")),
                       "output_gate_type: got sigmoid"));
  EXPECT_TRUE(contains(refusal(ErrorKind::kUnsupported, with(flat(), "output_gate_type", nullptr)),
                       "output_gate_type: got null"));
}

TEST(ModelConfig, MissingAndAbsurdSizesAreRefused) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
        "vocab_size", "max_position_embeddings", "linear_num_key_heads", "linear_num_value_heads",
        "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"}) {
    EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, without(flat(), key)), key));
    for (const Json& bad : {Json(0), Json(-4), Json(INT64_MAX), Json(UINT64_MAX), Json("96"), Json(96.0),
                            Json(true), Json::array()})
      EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, with(flat(), key, bad)), key)) << bad;
  }
  refusal(ErrorKind::kInvalid, with(flat(), "linear_conv_kernel_dim", 1));
  refusal(ErrorKind::kInvalid, with(flat(), "linear_conv_kernel_dim", 9));
  refusal(ErrorKind::kInvalid, with(flat(), "rms_norm_eps", 0));
}

TEST(ModelConfig, HeadsMustDivide) {
  EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, with(flat(), "num_key_value_heads", 4)),
                       "num_attention_heads: got 6, need a multiple of num_key_value_heads 4"));
  EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, with(flat(), "linear_num_value_heads", 5)),
                       "linear_num_value_heads: got 5, need a multiple of linear_num_key_heads 2"));
  EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, with(config_of("dense_qwen2_bias"), "hidden_size", 130)),
                       "hidden_size: got 130, need a multiple of num_attention_heads 4"));
}

TEST(ModelConfig, AnOddRotaryWidthIsRefused) {
  Json json = flat();
  json["rope_parameters"]["partial_rotary_factor"] = 0.3;
  EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid, json), "= 19 rotated elements"));
  json["rope_parameters"]["partial_rotary_factor"] = 1.5;
  refusal(ErrorKind::kInvalid, json);
}

TEST(ModelConfig, MalformedFilesAreRefused) {
  for (const char* text : {"", "[]", "null", "{}", "{\"text_config\": 1}", "{\"architectures\": [1]}"})
    error_of(ErrorKind::kInvalid, [&] { parse_model_config(text); });
  error_of(ErrorKind::kInvalid, [] { parse_model_config(R"({"hidden_size": 1, "hidden_size": 2})"); });
}

TEST(ModelConfig, LoadsADirectoryOrTheFileItself) {
  EXPECT_EQ(load_model_config(fixture("dense_qwen3") / "config.json").hidden_size, 96);
  const TempDirectory directory;
  EXPECT_TRUE(contains(error_of(ErrorKind::kNotFound, [&] { load_model_config(directory.path()); }),
                       "config.json: no such file"));
}

}  // namespace
}  // namespace longspan::io
