// Profiles of a real server on the bundled model: through its routes, and through the program with a signal.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "measure/profile_report.h"
#include "measure/profile_session.h"
#include "measure/server_program.h"
#include "server/server_fixture.h"

namespace longspan::testing {
namespace {

namespace fs = std::filesystem;

// A server on the shared engine that may be profiled.
class LiveProfile : public ::testing::Test {
 protected:
  LiveProfile()
      : root_(fs::temp_directory_path() / ("longspan_live_profile_" + std::to_string(::getpid()))),
        session_(Running::shared().engine(), {.directory = root_, .model_name = "tiny"}),
        server_(Running::shared().serve({.profiler = &session_})) {}
  ~LiveProfile() override {
    server_->stop();
    fs::remove_all(root_);
  }

  Reply start(const std::string& name) const { return post("start", {{"name", name}}); }
  Reply stop() const { return post("stop", Json::object()); }
  Reply post(const std::string& what, const Json& body) const {
    return Client(server_->port()).post("/v1/longspan/profile/" + what, body);
  }
  Reply chat(const std::string& text) const {
    return Client(server_->port()).post("/v1/chat/completions", user_says(text));
  }

  static double ms_of(const Json& classes, const std::string& name) {
    for (const Json& row : classes)
      if (row["name"] == name) return row["ms"];
    return 0;
  }

  fs::path root_;
  measure::ProfileSession session_;
  std::unique_ptr<server::Server> server_;
};

std::string long_text() {
  std::string text;
  for (int i = 0; i < 120; ++i) text += "The train to Kyoto leaves at " + std::to_string(i) + ". ";
  return text;
}

TEST_F(LiveProfile, HoldsWhatHappenedBetweenStartAndStop) {
  chat(long_text());  // not in the window; and the sizes below have been seen
  ASSERT_TRUE(Running::shared().becomes_idle());
  const auto asked = std::chrono::steady_clock::now();
  const Reply started = start("first");
  ASSERT_EQ(started.status, 200) << started.body;
  const auto begin = std::chrono::steady_clock::now();
  const Reply answer = chat(long_text());
  ASSERT_EQ(answer.status, 200) << answer.body;
  ASSERT_TRUE(Running::shared().becomes_idle());
  const auto seconds_since = [](auto then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
  };
  const double seconds = seconds_since(begin);
  const Reply stopped = stop();
  ASSERT_EQ(stopped.status, 200) << stopped.body;
  const double most_seconds = seconds_since(asked);

  const Json report = stopped.json();
  const Json& window = report["window"];
  EXPECT_EQ(window["requests"], 1);
  EXPECT_EQ(window["requests_before"], 0);
  const Json usage = answer.json()["usage"];
  EXPECT_EQ(window["prompt_tokens"], usage["prompt_tokens"]);
  // The first token comes out of the prompt; what ends an answer may be computed and not shown.
  const int decoded = window["decode_tokens"], shown = usage["completion_tokens"];
  EXPECT_GE(decoded, shown - 1);
  EXPECT_LE(decoded, shown);
  EXPECT_TRUE(window["cold_steps"].empty()) << window.dump();

  // The sums: all of the window, which is all that passed here.
  const double wall_ms = window["seconds"].get<double>() * 1e3;
  double sum_ms = 0;
  for (const Json& row : report["classes"]) sum_ms += row["ms"].get<double>();
  EXPECT_NEAR(sum_ms, wall_ms, 0.02 * wall_ms);
  EXPECT_GE(wall_ms * 1e-3, seconds);
  EXPECT_LE(wall_ms * 1e-3, most_seconds) << "nothing of the server's start";
  for (const char* name : {"matrix products", "skinny products", "gate/up GEMV", "prefill attention",
                           "decode attention", "GDN", "convolution", "norms", "rope and cache writes",
                           "sampling", "input preparation", "scheduling", "publishing", "idle"})
    EXPECT_GT(ms_of(report["classes"], name), 0) << name << "\n" << report["classes"].dump(1);

  for (const char* file :
       {"session.json", "events.bin", "report.json", "report.txt", "kernels.csv", "trace.json"})
    EXPECT_TRUE(fs::file_size(root_ / "first" / file) > 0) << file;
}

TEST_F(LiveProfile, ANameIsTakenOnce) {
  ASSERT_EQ(start("once").status, 200);
  EXPECT_EQ(start("twice").status, 409);  // one runs
  EXPECT_EQ(stop().status, 200);
  EXPECT_EQ(stop().status, 409);  // none runs
  const auto written = fs::last_write_time(root_ / "once" / "events.bin");
  const Reply again = start("once");
  EXPECT_EQ(again.status, 409);
  EXPECT_NE(again.body.find("is there already"), std::string::npos) << again.body;
  EXPECT_EQ(fs::last_write_time(root_ / "once" / "events.bin"), written);
}

TEST_F(LiveProfile, NamesAreNoPaths) {
  for (const char* name : {"../outside", "/tmp/outside", "a/b", "..", ""})
    EXPECT_EQ(start(name).status, 400) << name;
  EXPECT_EQ(post("start", Json::object()).status, 400);
  EXPECT_FALSE(fs::exists(root_.parent_path() / "outside"));
}

TEST_F(LiveProfile, AServerWithoutAFolderTakesNone) {
  const Reply refused = Client(Running::shared().port()).post("/v1/longspan/profile/start", {{"name", "a"}});
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("--profile-dir"), std::string::npos);
}

TEST_F(LiveProfile, NeedsTheKeyWhereThereIsOne) {
  const auto locked = Running::shared().serve({.api_key = "secret", .profiler = &session_});
  EXPECT_EQ(Client(locked->port()).post("/v1/longspan/profile/start", {{"name", "a"}}).status, 401);
  EXPECT_EQ(Client(locked->port()).post("/v1/longspan/profile/stop", Json::object()).status, 401);
  EXPECT_FALSE(fs::exists(root_ / "a"));
}

TEST_F(LiveProfile, AnswersAreTheSameWhileOneIsTaken) {
  const std::string before = chat("Count to ten.").json()["choices"].dump();
  ASSERT_EQ(start("same").status, 200);
  EXPECT_EQ(chat("Count to ten.").json()["choices"].dump(), before);
  EXPECT_EQ(stop().status, 200);
}

TEST_F(LiveProfile, NothingIsRecordedOutsideOfIt) {
  ASSERT_EQ(start("window").status, 200);
  ASSERT_EQ(stop().status, 200);
  const auto size = fs::file_size(root_ / "window" / "events.bin");
  chat("Hello");
  ASSERT_TRUE(Running::shared().becomes_idle());
  EXPECT_EQ(fs::file_size(root_ / "window" / "events.bin"), size);
  const Json report = measure::load_profile_report(root_ / "window");
  EXPECT_EQ(report["window"]["steps"], 0);
  EXPECT_NE(report["notes"].dump().find("no step ran"), std::string::npos);
}

// ---- the program ----

TEST(ProfileOfTheProgram, SurvivesASignal) {
  const fs::path root = fs::temp_directory_path() / ("longspan_sigterm_" + std::to_string(::getpid()));
  {
    ServerProgram server("--profile-dir " + root.string());
    const std::string flags = " --base-url http://127.0.0.1:" + std::to_string(server.port());
    const Outcome started = longspan("profile start --name kept" + flags);
    ASSERT_EQ(started.exit_code, 0) << started.out;
    ASSERT_EQ(Client(server.port()).post("/v1/chat/completions", user_says("Hello")).status, 200);
    EXPECT_EQ(server.end(SIGTERM), 0);
  }
  const Outcome report = longspan("profile report --json " + (root / "kept").string());
  ASSERT_EQ(report.exit_code, 0) << report.out;
  const Json json = Json::parse(report.out);
  EXPECT_TRUE(json["finished"]);
  EXPECT_GT(json["window"]["decode_tokens"], 0);
  EXPECT_NEAR(json["accounted_percent"].get<double>(), 100, 2);
  fs::remove_all(root);
}

TEST(ProfileOfTheProgram, AKilledServerLosesOnlyItsLastMoments) {
  const fs::path root = fs::temp_directory_path() / ("longspan_sigkill_" + std::to_string(::getpid()));
  {
    ServerProgram server("--profile-dir " + root.string());
    const std::string flags = " --base-url http://127.0.0.1:" + std::to_string(server.port());
    ASSERT_EQ(longspan("profile start --name killed" + flags).exit_code, 0);
    ASSERT_EQ(Client(server.port()).post("/v1/chat/completions", user_says("Hello")).status, 200);
    // Idle, the engine hands over what it has; on a busy machine the writer may need its time.
    for (int i = 0; i < 500 && fs::file_size(root / "killed" / "events.bin") < 5000; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    server.end(SIGKILL);
  }
  const Outcome table = longspan("profile report " + (root / "killed").string());
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_NE(table.out.find("never stopped"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("decode attention"), std::string::npos) << table.out;
  fs::remove_all(root);
}

}  // namespace
}  // namespace longspan::testing
