// The bench commands of the real program: what they print, what they save, and their exit codes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "measure/scripted_server.h"
#include "support/program.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using testing::chat_chunk;
using testing::kDone;
using testing::longspan;
using testing::Script;
using testing::ScriptedServer;
using testing::usage_chunk;
using Json = nlohmann::ordered_json;

class BenchProgram : public ::testing::Test {
 protected:
  BenchProgram() { fs::create_directories(folder_); }
  ~BenchProgram() override { fs::remove_all(folder_); }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  void save(const std::string& name, const Json& json) const { std::ofstream(file(name)) << json.dump(); }
  Json load(const std::string& name) const {
    std::ifstream in(file(name));
    return Json::parse(in, nullptr, /*allow_exceptions=*/false);
  }
  testing::Outcome serve(const ScriptedServer& server, const std::string& more) const {
    return longspan("bench serve --base-url " + server.url() +
                    "/v1 --input-len 40 --num-prompts 2 --result-dir " + folder_.string() + " " + more);
  }

 private:
  const fs::path folder_ = fs::path(::testing::TempDir()) / ("bench-program-" + std::to_string(::getpid()));
};

Script short_answer(int cached = 0) {
  return {{0, chat_chunk(R"({"content":"One"})")},
          {1, chat_chunk(R"({"content":" two"})", "stop")},
          {1, usage_chunk(40, 2, cached) + kDone}};
}

TEST_F(BenchProgram, ServePrintsAndSaves) {
  ScriptedServer server;
  server.answer = [](int, const Json&) { return short_answer(); };
  const testing::Outcome outcome = serve(server, "--result-filename a.json --label before");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  for (const char* part : {"Successful requests:", "Time to First Token", "warm-up", "measured", "saved to"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << outcome.out;
  EXPECT_EQ(outcome.out.find("VOID"), std::string::npos);
  EXPECT_EQ(server.requests().size(), 4U) << "as many warm up as are measured";
  const Json json = load("a.json");
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["label"], "before");
  EXPECT_TRUE(json["environment"]["client"].contains("machine"));
  EXPECT_FALSE(json["environment"]["client"]["program"]["hash"].get<std::string>().empty());
}

TEST_F(BenchProgram, AFailedRequestIsListedAndTheExitCodeIsOne) {
  ScriptedServer server;
  server.answer = [](int n, const Json&) { return n == 1 ? Script{} : short_answer(); };
  const testing::Outcome outcome = serve(server, "--num-warmups 0");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE(outcome.out.find("FAILED request 1 (all): HTTP 500: no such luck"), std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("measured cold"), std::string::npos) << outcome.out;
}

TEST_F(BenchProgram, APrefixHitIsLoud) {
  ScriptedServer server;
  server.answer = [](int, const Json&) { return short_answer(/*cached=*/32); };
  const testing::Outcome outcome = serve(server, "");
  EXPECT_NE(outcome.out.find("VOID: prefix cache: 2 of 2 requests"), std::string::npos) << outcome.out;
}

TEST_F(BenchProgram, TheKeyComesFromTheEnvironmentAsElsewhere) {
  const testing::Outcome help = longspan("bench serve --help");
  EXPECT_NE(help.out.find("OPENAI_API_KEY"), std::string::npos);
}

TEST_F(BenchProgram, BadUseIsTwoAndNoServerIsThree) {
  EXPECT_EQ(longspan("bench serve --base-url ftp://x").exit_code, 2);
  EXPECT_EQ(longspan("bench serve --dataset-name poems").exit_code, 2);
  EXPECT_EQ(longspan("bench serve --endpoint /v1/embeddings").exit_code, 2);
  EXPECT_EQ(longspan("bench serve --request-rate -1").exit_code, 2);
  EXPECT_EQ(longspan("bench serve --base-url http://127.0.0.1:1").exit_code, 3);
  EXPECT_EQ(longspan("bench report " + file("none")).exit_code, 2);
}

TEST_F(BenchProgram, CompareHasAnExitCodeForEachVerdict) {
  const Json service = {{"kind", "end_to_end"}, {"output_throughput", 10.0}};
  Json wrong = service;
  Json good = service;
  good["generated_texts"] = {"same"};
  good["output_lens"] = {1};
  wrong["generated_texts"] = {"other"};
  wrong["output_lens"] = {1};
  save("good.json", good);
  save("wrong.json", wrong);
  save("kernel.json", {{"kind", "kernel"}, {"figures", Json::array()}});
  EXPECT_EQ(longspan("bench compare " + file("good.json") + " " + file("good.json")).exit_code, 0);
  const testing::Outcome differs = longspan("bench compare " + file("good.json") + " " + file("wrong.json"));
  EXPECT_EQ(differs.exit_code, 1);
  EXPECT_NE(differs.out.find("OUTPUTS DIFFER"), std::string::npos) << differs.out;
  const testing::Outcome kinds = longspan("bench compare " + file("good.json") + " " + file("kernel.json"));
  EXPECT_EQ(kinds.exit_code, 2);
  EXPECT_NE(kinds.out.find("their ratio would mean nothing"), std::string::npos) << kinds.out;
}

TEST_F(BenchProgram, ReportWritesAPage) {
  save("a.json", {{"kind", "end_to_end"}, {"output_throughput", 12.5}});
  const testing::Outcome outcome =
      longspan("bench report " + fs::path(file("a.json")).parent_path().string());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  std::ifstream page(file("report.html"));
  const std::string html((std::istreambuf_iterator<char>(page)), {});
  EXPECT_NE(html.find("12.50"), std::string::npos);
}

}  // namespace
}  // namespace longspan
