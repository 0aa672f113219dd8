// The commands themselves: verify on the bundled model, doctor on this machine and on a server of the test's
// own.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "support/program.h"

namespace longspan {
namespace {

using testing::longspan;

const std::string kModel = std::string(" --model ") + LONGSPAN_SOURCE_DIR + "/models/longspan-tiny ";

TEST(VerifyProgram, TheBundledModelPasses) {
  const testing::Outcome outcome = longspan("verify" + kModel + "--quick --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
  const auto json = nlohmann::json::parse(outcome.out.substr(outcome.out.find('{')));
  EXPECT_TRUE(json["verified"]);
  std::set<std::string> topics;
  for (const auto& finding : json["findings"]) topics.insert(finding["topic"]);
  for (const char* topic : {"finite", "operations", "layers", "repeat", "prefix hit", "path", "retrieval",
                            "tracking", "arithmetic", "tool call"})
    EXPECT_TRUE(topics.contains(topic)) << topic;
}

TEST(VerifyProgram, NeedsSomethingToVerify) {
  EXPECT_EQ(longspan("verify").exit_code, 2);
  EXPECT_EQ(longspan("verify --model /no/such/model").exit_code, 2);
  EXPECT_EQ(longspan("verify" + kModel + "--no-such-flag").exit_code, 2);
}

TEST(DoctorProgram, SaysWhatThisMachineIs) {
  const testing::Outcome outcome = longspan("doctor" + kModel + "--json");
  ASSERT_LE(outcome.exit_code, 1) << outcome.out;  // this machine may have an ailment
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["healthy"], outcome.exit_code == 0);
  std::set<std::string> topics;
  for (const auto& finding : json["findings"]) topics.insert(finding["topic"]);
  for (const char* topic : {"program", "cpu", "memory", "oom", "page plan", "paths", "open files", "disk"})
    EXPECT_TRUE(topics.contains(topic)) << topic;
  EXPECT_FALSE(json["environment"]["program"]["hash"].get<std::string>().empty());
}

TEST(DoctorProgram, AServerThatIsNotThereFails) {
  const testing::Outcome outcome = longspan("doctor --base-url http://127.0.0.1:9");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE(outcome.out.find("FAIL server"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace longspan
