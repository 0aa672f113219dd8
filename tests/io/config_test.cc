#include "io/config.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace longspan::io {
namespace {

std::string refusal(const std::function<void(Config&)>& change) {
  Config config;
  try {
    change(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kInvalid);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(Config, TheFilesOfTheFieldReportsLoadUnchanged) {
  Config page;
  page.load_file(std::string(LONGSPAN_SOURCE_DIR) + "/tests/fixtures/config/page832.toml");
  EXPECT_EQ(page.integer("cache.alignment_tokens"), 64);
  EXPECT_EQ(page.integer("cache.target_page_tokens"), 832);
  EXPECT_EQ(page.source("cache.target_page_tokens"), "page832.toml");
  EXPECT_EQ(page.string("dispatch.decode_path"), "page_contiguous");
  EXPECT_TRUE(page.is_default("server.port"));
  Config z100;
  z100.load_file(std::string(LONGSPAN_SOURCE_DIR) + "/tests/fixtures/config/z100-w4a16.toml");
  EXPECT_EQ(z100.integer("model.tensor_parallel_size"), 2);
  EXPECT_DOUBLE_EQ(z100.number("model.gpu_memory_utilization"), 0.9);
  EXPECT_EQ(z100.string("graph.hip_graph_mode"), "FULL_DECODE_ONLY");
  EXPECT_DOUBLE_EQ(z100.number("engine.rpc_timeout_seconds"), 1800);  // an integer serves as a number
}

TEST(Config, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  Config config;
  EXPECT_EQ(config.integer("server.port"), 8000);
  config.load_toml("[server]\nport = 1", "config.toml");
  EXPECT_EQ(config.integer("server.port"), 1);
  const char* environment[] = {"PATH=/bin", "LONGSPAN_SERVER_PORT=2",
                               "LONGSPAN_CACHE_ENABLE_PREFIX_CACHING=on", nullptr};
  config.load_environment(environment);
  EXPECT_EQ(config.integer("server.port"), 2);
  EXPECT_EQ(config.source("server.port"), "LONGSPAN_SERVER_PORT");
  EXPECT_TRUE(config.boolean("cache.enable_prefix_caching"));
  config.set("server.port", "3", "--port");
  EXPECT_EQ(config.integer("server.port"), 3);
  EXPECT_EQ(config.source("server.port"), "--port");
}

TEST(Config, UnknownKeysNameTheNearest) {
  EXPECT_EQ(refusal([](Config& c) { c.load_toml("[cache]\nalignement_tokens = 64", "x.toml"); }),
            "x.toml: unknown key cache.alignement_tokens; did you mean cache.alignment_tokens?");
  EXPECT_NE(refusal([](Config& c) { c.load_toml("[engine]\nport = 1", "x.toml"); }).find("server.port"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.load_toml("port = 1", "x.toml"); }).find("unknown key port"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.set("nonsense", "1", "--flag"); }).find("--flag: unknown key"),
            std::string::npos);
}

TEST(Config, MistypedVariablesAreNotSilent) {
  const char* mistyped[] = {"LONGSPAN_CACHE_ALIGMENT_TOKENS=64", nullptr};
  EXPECT_NE(refusal([&](Config& c) { c.load_environment(mistyped); }).find("LONGSPAN_CACHE_ALIGMENT_TOKENS"),
            std::string::npos);
  const char* others[] = {"LONGSPAN_API_KEY=x", "LONGSPAN_CPU_ISA=avx2", nullptr};
  Config config;
  config.load_environment(others);
  EXPECT_TRUE(config.lines(/*only_changed=*/true).empty());
}

TEST(Config, WrongTypesAndSyntaxAreNamed) {
  EXPECT_EQ(refusal([](Config& c) { c.load_toml("[server]\nport = \"eighty\"", "x.toml"); }),
            "x.toml: server.port: got 'eighty', need an integer");
  EXPECT_EQ(refusal([](Config& c) { c.load_toml("[cache]\nmin_page_tokens = 1.5", "x.toml"); }),
            "x.toml: cache.min_page_tokens: got 1.5, need an integer of tokens");
  EXPECT_NE(refusal([](Config& c) { c.load_toml("[server]\nport = ", "x.toml"); }).find("x.toml: line 2"),
            std::string::npos);
  EXPECT_NE(refusal([](Config& c) { c.set("server.port", "12x", "--port"); }).find("'12x'"),
            std::string::npos);
  EXPECT_NE(
      refusal([](Config& c) { c.set("cache.enable_prefix_caching", "maybe", "env"); }).find("true or false"),
      std::string::npos);
}

TEST(Config, LinesShowValueAndSourceAndMaskTheKey) {
  Config config;
  config.load_toml("[server]\napi_key = \"sk-secret\"\nport = 9", "x.toml");
  EXPECT_EQ(config.lines(/*only_changed=*/true),
            (std::vector<std::string>{"server.port = 9  # x.toml", "server.api_key = \"***\"  # x.toml"}));
  EXPECT_EQ(config.lines(/*only_changed=*/false).size(), config_keys().size());
}

TEST(Config, EveryKeyIsDocumentedOnce) {
  for (const ConfigKey& key : config_keys()) {
    EXPECT_FALSE(key.doc.empty()) << key.name;
    EXPECT_NE(key.name.find('.'), std::string_view::npos) << key.name;
    int count = 0;
    for (const ConfigKey& other : config_keys()) count += other.name == key.name;
    EXPECT_EQ(count, 1) << key.name;
  }
}

}  // namespace
}  // namespace longspan::io
