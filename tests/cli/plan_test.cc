// `longspan plan` on the published shapes: the page sizes that the field reports and the design name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/program.h"

namespace longspan {
namespace {

using testing::longspan;

const std::string kConfigs = std::string(LONGSPAN_SOURCE_DIR) + "/tests/fixtures/model-configs/";

nlohmann::json plan(const std::string& model, const std::string& more) {
  const testing::Outcome outcome =
      longspan("plan --json --model " + kConfigs + model + "/config.json " + more);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  return nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
}

TEST(Plan, PagesOfTheFamily) {
  const struct {
    const char* model;
    const char* more;
    int page_tokens;
  } cases[] = {
      {"qwen3.5-0.8b", "--alignment 16", 544},
      {"qwen3.5-0.8b", "--alignment 64", 576},
      {"qwen3.5-4b", "--alignment 16", 528},
      {"qwen3.5-4b", "--alignment 64", 576},
      {"qwen3.5-9b", "--alignment 16", 528},
      {"qwen3.5-9b", "--alignment 64", 576},
      {"qwen3.5-27b", "--alignment 16", 784},
      {"qwen3.5-27b", "--alignment 64", 832},
      {"qwen3.5-27b", "", 832},  // the vendor's path asks for 64
      {"qwen3.5-27b", "--alignment 16 --block-size 64", 832},
      {"qwen3.5-27b", "--alignment 64 --enable-prefix-caching", 1024},
      {"qwen3.5-27b", "--alignment 16 --kv-cache-dtype fp8_e4m3", 1568},
      {"qwen3.5-27b", "--alignment 64 --kv-cache-dtype fp8_e4m3", 1600},
      {"qwen3.5-27b", "--alignment 16 --tensor-parallel-size 8", 400},
      {"qwen3.5-27b", "--alignment 64 --layout split", 64},
  };
  for (const auto& each : cases)
    EXPECT_EQ(plan(each.model, each.more)["page_tokens"], each.page_tokens) << each.model << " " << each.more;
}

TEST(Plan, BytesGroupsAndChunks) {
  const nlohmann::json json =
      plan("qwen3.5-27b", "--alignment 64 --prompt-tokens 32768 --max-num-batched-tokens 4096");
  EXPECT_EQ(json["kv_bytes_per_token"], 4096);
  EXPECT_EQ(json["state_bytes"], 3207168);
  EXPECT_EQ(json["attention_page_bytes"], 832 * 4096);
  EXPECT_EQ(json["groups"].size(), 4u);
  EXPECT_EQ(json["groups"][0]["layers"].size(), 16u);
  ASSERT_EQ(json["chunks"].size(), 8u);
  EXPECT_EQ(json["chunks"][7], (nlohmann::json{{"q_len", 4096}, {"kv_len", 32768}}));
  const nlohmann::json tail =
      plan("qwen3.5-27b", "--prompt-tokens 5000 --max-num-batched-tokens 4096")["chunks"];
  EXPECT_EQ(tail, (nlohmann::json{{{"q_len", 4096}, {"kv_len", 4096}}, {{"q_len", 904}, {"kv_len", 5000}}}));
}

TEST(Plan, TheConfigOfTheFieldReport) {
  const std::string config = "--config " LONGSPAN_SOURCE_DIR "/tests/fixtures/config/page832.toml";
  EXPECT_EQ(plan("qwen3.5-27b", config)["page_tokens"], 832);
  // The two traps: the layout is not the one that was meant, or prefix caching is on.
  const std::string model = "plan --model " + kConfigs + "qwen3.5-27b/config.json " + config;
  const testing::Outcome other = longspan(model + " --alignment 16 --min-page-tokens 0");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.out.find("784"), std::string::npos) << other.out;
  const testing::Outcome cached = longspan(model + " --enable-prefix-caching");
  EXPECT_EQ(cached.exit_code, 2);
  EXPECT_NE(cached.out.find("1024"), std::string::npos) << cached.out;
  // The file expects 24 query heads; the 4B has 16.
  const testing::Outcome heads =
      longspan("plan --model " + kConfigs + "qwen3.5-4b/config.json " + config + " --target-page-tokens 0");
  EXPECT_EQ(heads.exit_code, 2);
  EXPECT_NE(heads.out.find("attention.query_heads expects 24"), std::string::npos) << heads.out;
}

}  // namespace
}  // namespace longspan
