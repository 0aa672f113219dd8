// What `longspan run` does with a model that has no tokenizer: ids in, ids out.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/program.h"

namespace longspan {
namespace {

using testing::longspan;
using testing::Outcome;

class RunOnIds : public ::testing::Test {
 protected:
  RunOnIds()
      : path_(std::filesystem::temp_directory_path() / ("longspan_ids_" + std::to_string(::getpid()))) {
    std::ofstream(path_) << "1 2 3\n4 5";
  }
  ~RunOnIds() override { std::filesystem::remove(path_); }
  std::string flag() const { return " --max-tokens 4 --ignore-eos --prompt-ids " + path_.string() + " "; }

  static nlohmann::json parse(const Outcome& outcome) {
    return nlohmann::json::parse(outcome.out.substr(std::min(outcome.out.find('{'), outcome.out.size())),
                                 nullptr, false);
  }

  std::filesystem::path path_;
};

const std::string kModel = LONGSPAN_SOURCE_DIR "/tests/fixtures/hybrid_r3_tied";

TEST_F(RunOnIds, ADirectoryWithoutATokenizerAnswersInIds) {
  const Outcome outcome = longspan("run --json --model " + kModel + flag());
  const nlohmann::json json = parse(outcome);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_EQ(json["prompt_tokens"], 5);
  EXPECT_EQ(json["ids"].size(), 4);
  EXPECT_EQ(json["text"], "");
}

TEST_F(RunOnIds, AShapeAloneRunsOnRandomWeightsAndTheSameOnesAgain) {
  const std::string command = "run --json --random-weights 7 --model " + kModel + "/config.json" + flag();
  const nlohmann::json first = parse(longspan(command));
  const nlohmann::json again = parse(longspan(command));
  ASSERT_TRUE(first.is_object());
  EXPECT_EQ(first["ids"].size(), 4);
  EXPECT_EQ(first["ids"], again["ids"]);
}

TEST_F(RunOnIds, TheIdsAreWhatIsPrinted) {
  const nlohmann::json json = parse(longspan("run --json --model " + kModel + flag()));
  ASSERT_TRUE(json.is_object());
  std::string want;
  for (const int id : json["ids"]) want += std::to_string(id) + " ";
  // The log goes elsewhere: `longspan` here keeps both streams.
  const std::string answer = path_.string() + ".answer";
  const Outcome outcome =
      longspan("run --model " + kModel + flag() + ">" + answer + " 2>/dev/null; cat " + answer);
  std::filesystem::remove(answer);
  EXPECT_EQ(outcome.out, want + "\n");
}

TEST_F(RunOnIds, TextNeedsATokenizer) {
  const Outcome outcome = longspan("run --prompt Hello --model " + kModel);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_NE(outcome.out.find("tokenizer.json"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace longspan
