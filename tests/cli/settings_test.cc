// Settings reach every command the same way: flag over environment over file over default, and what a command
// cannot do is refused by name.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/program.h"

namespace longspan {
namespace {

using testing::longspan;
using testing::Outcome;

const std::string kSampleConfigs = LONGSPAN_SOURCE_DIR "/tests/fixtures/config/";
const std::string kTinyModel = " --model " LONGSPAN_SOURCE_DIR "/models/longspan-tiny ";

bool has_line(const Outcome& outcome, const std::string& line) {
  return ("\n" + outcome.out).find("\n" + line + "\n") != std::string::npos;
}

Outcome print_config(const std::string& arguments) { return longspan("serve --print-config " + arguments); }

class File {
 public:
  explicit File(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("longspan_settings_" + std::to_string(::getpid()))) {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  std::string flag() const { return " --config " + path_.string() + " "; }

 private:
  std::filesystem::path path_;
};

TEST(Settings, TheFilesOfTheFieldReportsLoadForServe) {
  const Outcome page = print_config("--config " + kSampleConfigs + "page832.toml" + kTinyModel);
  EXPECT_EQ(page.exit_code, 0) << page.out;
  EXPECT_TRUE(has_line(page, "cache.target_page_tokens = 832  # page832.toml")) << page.out;
  EXPECT_TRUE(
      has_line(page, "model.model_path = \"" LONGSPAN_SOURCE_DIR "/models/longspan-tiny\"  # --model"))
      << page.out;
  EXPECT_TRUE(has_line(page, "server.port = 8000  # default")) << page.out;
  const Outcome z100 = print_config("--config " + kSampleConfigs + "z100-w4a16.toml" + kTinyModel);
  EXPECT_EQ(z100.exit_code, 0) << z100.out;
  EXPECT_TRUE(has_line(z100, "engine.rpc_timeout_seconds = 1800  # z100-w4a16.toml")) << z100.out;
  EXPECT_TRUE(has_line(z100, "server.api_key = \"***\"  # z100-w4a16.toml")) << z100.out;
}

TEST(Settings, WhatThisBuildCannotDoIsRefusedByName) {
  const struct {
    const char* arguments;
    const char* reason;
  } cases[] = {
      {"z100-w4a16.toml", "attention.hip_attention_softmax_segments"},
      {"page832.toml", "attention.query_heads expects 24: the model has 6"},
      {"page832.toml --tensor-parallel-size 2", "tensor_parallel_size 2: this build has one rank"},
      {"page832.toml --kv-cache-dtype fp8_e5m2", "kv_cache_dtype fp8_e5m2"},
      {"page832.toml --no-enable-chunked-prefill", "graph.chunked_prefill"},
      {"page832.toml --host 0.0.0.0", "--allow-no-key"},
      {"page832.toml --gpu-memory-utilization 1.5", "gpu_memory_utilization: got 1.5"},
  };
  for (const auto& each : cases) {
    const Outcome outcome =
        longspan("serve" + kTinyModel + "--target-page-tokens 0 --config " + kSampleConfigs + each.arguments);
    EXPECT_EQ(outcome.exit_code, 2) << each.arguments << "\n" << outcome.out;
    EXPECT_NE(outcome.out.find(each.reason), std::string::npos) << each.reason << " in\n" << outcome.out;
    EXPECT_EQ(outcome.out.find("listening"), std::string::npos) << outcome.out;
  }
  const Outcome quantised = longspan("serve" + kTinyModel + "--quantization awq");
  EXPECT_EQ(quantised.exit_code, 2) << quantised.out;
  EXPECT_NE(quantised.out.find("model.quantization expects awq weights: the model says none"),
            std::string::npos)
      << quantised.out;
}

TEST(Settings, TheStartCommandOfTheFieldReports) {
  const Outcome outcome = print_config(
      "--model /models/Qwen3.5-27B --served-model-name qwen3.5-dcu qwen --dtype bfloat16 "
      "--tensor-parallel-size 1 --max-model-len 32768 --gpu-memory-utilization 0.90 --max-num-seqs 8 "
      "--enable-chunked-prefill --max-num-batched-tokens 4096 --no-enable-prefix-caching --block-size 64 "
      "--kv-cache-dtype auto --quantization none --enforce-eager --disable-log-requests --host 127.0.0.1 "
      "--port 8001 --api-key sk-secret");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  for (const char* line : {"model.model_path = \"/models/Qwen3.5-27B\"  # --model",
                           "server.served_model_name = \"qwen3.5-dcu,qwen\"  # --served-model-name",
                           "model.gpu_memory_utilization = 0.9  # --gpu-memory-utilization",
                           "cache.enable_prefix_caching = false  # --no-enable-prefix-caching",
                           "server.log_requests = false  # --disable-log-requests",
                           "graph.enforce_eager = true  # --enforce-eager", "server.port = 8001  # --port",
                           "server.api_key = \"***\"  # --api-key"})
    EXPECT_TRUE(has_line(outcome, line)) << line << "\n" << outcome.out;
}

TEST(Settings, FlagBeatsEnvironmentBeatsFile) {
  const File file("[server]\nport = 1\napi_key = \"in the file\"\n[cache]\nlayout = \"split\"\n");
  ::setenv("LONGSPAN_SERVER_PORT", "2", 1);
  ::setenv("LONGSPAN_API_KEY", "short name", 1);
  const Outcome by_environment = print_config(file.flag());
  const Outcome by_flag = print_config(file.flag() + "--port 3");
  ::unsetenv("LONGSPAN_SERVER_PORT");
  ::unsetenv("LONGSPAN_API_KEY");
  EXPECT_TRUE(has_line(by_environment, "server.port = 2  # LONGSPAN_SERVER_PORT")) << by_environment.out;
  EXPECT_TRUE(has_line(by_environment, "server.api_key = \"***\"  # LONGSPAN_API_KEY")) << by_environment.out;
  EXPECT_TRUE(has_line(by_flag, "server.port = 3  # --port")) << by_flag.out;
}

TEST(Settings, AnUnknownKeyNamesTheNearest) {
  const File file("[cache]\nalignement_tokens = 64\n");
  for (const char* command : {"serve", "run --prompt x", "score --prompt-file x", "plan"}) {
    const Outcome outcome = longspan(command + kTinyModel + file.flag());
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_NE(outcome.out.find("did you mean cache.alignment_tokens?"), std::string::npos) << outcome.out;
  }
}

TEST(Settings, RunTakesAFileAndSaysWhatIsNotDefault) {
  const File file("[model]\nmodel_path = \"" LONGSPAN_SOURCE_DIR
                  "/models/longspan-tiny\"\nmax_model_len = 2048\n[cache]\nlayout = \"split\"\n");
  const Outcome outcome = longspan("run --prompt Hello --max-tokens 4" + file.flag());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("split layout"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("model.max_model_len = 2048  # longspan_settings_"), std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.out.find("# default"), std::string::npos) << outcome.out;
}

TEST(Settings, ThoughtsAreTakenOutOfTheAnswer) {
  const Outcome outcome =
      longspan("run --json --thinking --prompt 'What is 3 + 4?' --max-model-len 2048" + kTinyModel);
  const nlohmann::json json =
      nlohmann::json::parse(outcome.out.substr(outcome.out.find('{')), nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_EQ(json["text"], "7");
  EXPECT_NE(json["reasoning"].get<std::string>().find("3 + 4"), std::string::npos);
  EXPECT_GE(json["ttft_ms"].get<double>(), 0);
}

}  // namespace
}  // namespace longspan
