#include "io/generation_config.h"

#include "io/files.h"

namespace longspan::io {
namespace {

TEST(GenerationConfig, ReadsTheBundledModel) {
  const GenerationConfig config = load_generation_config(bundled_model());
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{4066, 4064}));
  EXPECT_EQ(config.do_sample, false);
  EXPECT_EQ(config.temperature, 0.0);
  EXPECT_FALSE(config.top_p);
}

TEST(GenerationConfig, ReadsEveryField) {
  const GenerationConfig config = parse_generation_config(
      R"({"eos_token_id": 5, "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01,
          "repetition_penalty": 1.05, "transformers_version": "5.17.0"})");
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{5});
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.95);
  EXPECT_EQ(config.min_p, 0.01);
  EXPECT_EQ(config.repetition_penalty, 1.05);
}

TEST(GenerationConfig, AnAbsentFileIsEmpty) {
  const TempDirectory directory;
  const GenerationConfig config = load_generation_config(directory.path());
  EXPECT_TRUE(config.eos_ids.empty());
  EXPECT_FALSE(config.temperature);
}

TEST(GenerationConfig, BadValuesAreRefused) {
  for (const char* text :
       {"[]", R"({"temperature": -1})", R"({"temperature": "hot"})", R"({"top_p": 0})", R"({"top_p": 1.5})",
        R"({"top_k": -1})", R"({"top_k": 1.5})", R"({"min_p": 2})", R"({"do_sample": 1})",
        R"({"eos_token_id": "x"})", R"({"eos_token_id": [1, -1]})", R"({"repetition_penalty": 0})"})
    EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid, [&] { parse_generation_config(text); }),
                         "generation_config.json"))
        << text;
}

TEST(StopTokenIds, IsTheUnionOfAllThree) {
  ModelConfig model;
  model.eos_ids = {9, 3};
  GenerationConfig generation;
  generation.eos_ids = {3, 5};
  EXPECT_EQ(stop_token_ids(model, generation, {7, 9}), (std::vector<int32_t>{3, 5, 7, 9}));
  EXPECT_TRUE(stop_token_ids(ModelConfig{}, GenerationConfig{}).empty());
}

}  // namespace
}  // namespace longspan::io
