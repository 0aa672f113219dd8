// Profiles of an engine on a device: the table comes from what the device did, also inside replays.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "core/error.h"
#include "measure/profile_session.h"
#include "support/fixture.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class DeviceProfile : public ::testing::Test {
 protected:
  DeviceProfile()
      : root_(fs::temp_directory_path() / ("longspan_device_profile_" + std::to_string(::getpid()))) {}
  ~DeviceProfile() override { fs::remove_all(root_); }

  // A prompt of more rows than decode takes, then so many tokens.
  void answer(int num_tokens) {
    engine::Response response = engine().submit(
        {.prompt = std::vector<int32_t>(20, 7), .max_new_tokens = num_tokens, .ignore_eos = true});
    engine::ResponseUpdate update;
    do update = response.wait(std::chrono::seconds(60));
    while (!update.done);
  }
  static engine::Engine& engine() {
    static engine::Engine one({.model = testing::model_dir("hybrid_r3_tied"),
                               .device = engine::DeviceKind::kDevice,
                               .dtype = DType::kF32,
                               .max_model_len = 128,
                               .max_num_seqs = 2,
                               .replay = engine::ReplayMode::kFullDecodeOnly});
    return one;
  }
  static int64_t num_replayed() { return engine().status().replays.num_replayed; }

  // Why there is none on this device; empty: there is one.
  static std::string clock_missing() {
    try {
      ops::device::start_kernel_clock();
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  Json report(const std::string& name) const {
    std::ifstream file(root_ / name / "report.json");
    return Json::parse(file);
  }
  static double ms_of(const Json& report, const std::string& name) {
    for (const Json& row : report["classes"])
      if (row["name"] == name) return row["ms"];
    return -1;
  }
  static bool notes_say(const Json& report, const std::string& words) {
    return report["notes"].dump().find(words) != std::string::npos;
  }
  std::string text_of(const std::string& name, const char* file) const {
    std::ifstream in(root_ / name / file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  fs::path root_;
};

TEST_F(DeviceProfile, ComesFromKernelsInReplaysToo) {
  if (const std::string why = clock_missing(); !why.empty()) GTEST_SKIP() << why;
  answer(6);  // records a decode step
  ProfileSession session(engine(), {.directory = root_, .model_name = "tiny"});
  const int64_t replayed = num_replayed();
  session.start("kernels");
  answer(6);
  session.stop();
  EXPECT_GT(num_replayed(), replayed)
      << "a profile with kernel times does not keep steps from being replayed";

  const Json json = report("kernels");
  EXPECT_EQ(json["timed"], "kernels");
  for (const char* name : {"matrix products", "skinny products", "decode attention", "GDN", "convolution",
                           "norms", "rope and cache writes", "copies", "idle"})
    EXPECT_GT(ms_of(json, name), 0) << name << "\n" << json["classes"].dump(1);
  EXPECT_LT(ms_of(json, "other kernels"), 0) << json["classes"].dump(1);
  EXPECT_NEAR(json["accounted_percent"].get<double>(), 100, 1e-6);
  EXPECT_FALSE(notes_say(json, "did not run what was recorded")) << json["notes"];
  EXPECT_FALSE(notes_say(json, "no kernel times"));
  double idle_ms = 0;
  for (const Json& phase : json["phases"]) idle_ms += phase["device_idle_ms"].get<double>();
  EXPECT_NEAR(idle_ms, ms_of(json, "idle"), 1e-6);

  // Calls are those of the steps, whoever put them to the device; every one of them was launched.
  std::stringstream csv(text_of("kernels", "kernels.csv"));
  std::string line;
  std::getline(csv, line);
  EXPECT_TRUE(line.ends_with(",launches"));
  for (; std::getline(csv, line);) EXPECT_FALSE(line.ends_with(",0")) << line;
  EXPECT_NE(text_of("kernels", "launches.csv").find(','), std::string::npos);
  EXPECT_NE(text_of("kernels", "trace.json").find(R"("name":"replay")"), std::string::npos);
  EXPECT_NE(text_of("kernels", "report.txt").find("no kernel ran while the host was at:"), std::string::npos);
}

// Who refuses is named, and operations are timed where they are launched.
TEST_F(DeviceProfile, GoesOnWithoutAClock) {
  const auto refuse = []() -> std::unique_ptr<ops::device::KernelClock> {
    fail(ErrorKind::kEnvironment, "another profiler is at work");
  };
  ProfileSession session(engine(), {.directory = root_, .model_name = "tiny", .start_clock = refuse});
  const int64_t replayed = num_replayed();
  session.start("launches");
  answer(4);
  session.stop();
  EXPECT_EQ(num_replayed(), replayed);
  const Json json = report("launches");
  EXPECT_EQ(json["timed"], "launches");
  EXPECT_TRUE(notes_say(json, "no kernel times: another profiler is at work")) << json["notes"];
  EXPECT_GT(ms_of(json, "sampling"), 0);
  EXPECT_FALSE(fs::exists(root_ / "launches" / "device.bin"));
}

TEST_F(DeviceProfile, TheNextOneFindsTheClockFree) {
  if (const std::string why = clock_missing(); !why.empty()) GTEST_SKIP() << why;
  ProfileSession session(engine(), {.directory = root_, .model_name = "tiny"});
  for (const char* name : {"first", "second"}) {
    session.start(name);
    answer(3);
    session.stop();
    EXPECT_EQ(report(name)["timed"], "kernels");
    EXPECT_GT(ms_of(report(name), "GDN"), 0);
  }
}

}  // namespace
}  // namespace longspan::measure
