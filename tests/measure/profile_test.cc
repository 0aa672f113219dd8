// What a profile makes of its events: sums, shares, notes and comparisons, on windows written by hand.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>

#include "core/error.h"
#include "measure/profile_file.h"
#include "measure/profile_report.h"
#include "measure/profile_totals.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using engine::Phase;
using engine::TraceEvent;
using Json = nlohmann::ordered_json;

constexpr int64_t kMs = 1'000'000;  // in ns

// A window built phase by phase from a clock of its own.
class Window {
 public:
  Window& phase(Phase phase, int64_t took_ms) {
    events_.push_back({.begin_ns = at_, .end_ns = at_ + took_ms * kMs, .phase = phase});
    at_ += took_ms * kMs;
    return *this;
  }
  // Inside the phase that comes next, from its begin on.
  Window& op(ops::OpClass op_class, int64_t took_ms, double bytes = 0, double flops = 0) {
    events_.push_back(
        {.begin_ns = at_,
         .end_ns = at_ + took_ms * kMs,
         .op = {.kind = ops::OpKind::kMatmul, .op_class = op_class, .bytes = bytes, .flops = flops},
         .kind = TraceEvent::Kind::kOp,
         .phase = Phase::kForward});
    return *this;
  }
  // As op(), with a number for the kernel clock.
  Window& device_op(ops::OpClass op_class, uint32_t call, int64_t took_ms, double bytes) {
    op(op_class, took_ms, bytes).events_.back().call = call;
    return *this;
  }
  Window& step(int32_t prompt, int32_t decode, bool cold = false) {
    events_.push_back({.begin_ns = at_ - kMs,
                       .end_ns = at_,
                       .op = {.rows = prompt, .n = decode, .k = 1},
                       .kind = TraceEvent::Kind::kStep,
                       .cold = cold});
    return *this;
  }
  const std::vector<TraceEvent>& events() const { return events_; }

 private:
  int64_t at_ = 1000 * kMs;
  std::vector<TraceEvent> events_;
};

class Profile : public ::testing::Test {
 protected:
  Profile() : root_(fs::temp_directory_path() / ("longspan_profile_" + std::to_string(::getpid()))) {}
  ~Profile() override { fs::remove_all(root_); }

  fs::path write(const std::string& name, const Window& window, bool finished = true) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder);
    Json session = {{"name", name}, {"model", "m"}, {"device", "cpu"}, {"dtype", "bfloat16"}, {"threads", 2}};
    session["peak"] = {{"machine", "x"},
                       {"threads", 2},
                       {"version", "1"},
                       {"read_gbytes_per_s", 50.0},
                       {"copy_gbytes_per_s", 40.0},
                       {"bf16_tflops", 1.0},
                       {"fp32_tflops", 0.1},
                       {"unix_seconds", 1}};
    if (finished) session["ending"] = {{"finished", true}};
    write_text(folder / kSessionFile, session.dump());
    EventWriter(folder).append(window.events());
    return folder;
  }

  static Json row(const Json& report, const std::string& name) {
    for (const Json& one : report["classes"])
      if (one["name"] == name) return one;
    return Json();
  }
  static bool notes_say(const Json& report, const std::string& words) {
    return report["notes"].dump().find(words) != std::string::npos;
  }
  static std::string text_of(const fs::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  fs::path root_;
};

Window one_step() {
  Window window;
  window.phase(Phase::kIdle, 50).phase(Phase::kScheduling, 2).phase(Phase::kInputs, 3);
  window.op(ops::OpClass::kSkinnyProduct, 20, 1e9, 2e9).op(ops::OpClass::kDecodeAttention, 10);
  window.phase(Phase::kForward, 33).phase(Phase::kSampling, 8).phase(Phase::kPublishing, 4).step(0, 1);
  return window;
}

TEST_F(Profile, ClassesAddUpToTheWindow) {
  const Json report = write_profile_report(write("a", one_step()));
  EXPECT_DOUBLE_EQ(report["window"]["seconds"].get<double>(), 0.1);
  EXPECT_DOUBLE_EQ(report["window"]["idle_seconds"].get<double>(), 0.05);
  EXPECT_DOUBLE_EQ(report["accounted_percent"].get<double>(), 100);
  EXPECT_DOUBLE_EQ(row(report, "skinny products")["ms"].get<double>(), 20);
  EXPECT_DOUBLE_EQ(row(report, "skinny products")["wall_percent"].get<double>(), 20);
  EXPECT_DOUBLE_EQ(row(report, "skinny products")["busy_percent"].get<double>(), 40);
  EXPECT_DOUBLE_EQ(row(report, "between operations")["ms"].get<double>(), 3);
  EXPECT_DOUBLE_EQ(row(report, "sampling")["ms"].get<double>(), 8);
  EXPECT_DOUBLE_EQ(row(report, "idle")["ms"].get<double>(), 50);
  EXPECT_TRUE(row(report, "idle")["busy_percent"].is_null());
}

TEST_F(Profile, RatesAreOfTheMachinesLimits) {
  const Json report = write_profile_report(write("a", one_step()));
  const Json product = row(report, "skinny products");  // 1 GB and 2 GFLOP in 20 ms
  EXPECT_DOUBLE_EQ(product["gbytes_per_s"].get<double>(), 50);
  EXPECT_DOUBLE_EQ(product["read_percent"].get<double>(), 100);
  EXPECT_DOUBLE_EQ(product["tflops"].get<double>(), 0.1);
  EXPECT_NEAR(product["matrix_percent"].get<double>(), 10, 1e-9);
  // What is not known is blank, not zero.
  EXPECT_TRUE(row(report, "decode attention")["gbytes_per_s"].is_null());
}

TEST_F(Profile, KernelsAreTheSumsOfTheTrace) {
  Window window = one_step();
  window.op(ops::OpClass::kSkinnyProduct, 7).phase(Phase::kForward, 7).step(0, 1);
  const fs::path folder = write("a", window);
  write_profile_report(folder);
  std::map<std::string, double> ms;  // by name and class
  const Json trace = Json::parse(text_of(folder / "trace.json"));
  for (const Json& event : trace["traceEvents"])
    if (event.value("tid", 0) == 3 && event["ph"] == "X")
      ms[event["name"].get<std::string>() + "," + event["cat"].get<std::string>()] +=
          event["dur"].get<double>() / 1e3;
  std::stringstream csv(text_of(folder / "kernels.csv"));
  std::string line;
  std::getline(csv, line);
  size_t rows = 0;
  for (; std::getline(csv, line); ++rows) {
    std::stringstream fields(line);
    std::string name, op_class, calls, total;
    std::getline(fields, name, ',');
    std::getline(fields, op_class, ',');
    std::getline(fields, calls, ',');
    std::getline(fields, total, ',');
    EXPECT_NEAR(std::stod(total), ms.at(name + "," + op_class), 1e-6) << line;
  }
  EXPECT_EQ(rows, ms.size());
}

// The host launches for 10 ms; the device computes from the fifth on, and 5 ms longer.
TEST_F(Profile, OnADeviceTheTableIsOfItsKernels) {
  Window window;
  window.phase(Phase::kScheduling, 2);
  window.device_op(ops::OpClass::kDecodeAttention, 1, 10, 1e9).phase(Phase::kForward, 10);
  window.phase(Phase::kSampling, 8).step(0, 1);
  const fs::path folder = write("a", window);
  using ops::device::KernelEvent;
  const auto at = [](int64_t ms) { return (1000 + ms) * kMs; };
  EXPECT_TRUE(DeviceEventWriter(folder).append(
      {.events = {{.begin_ns = at(7), .end_ns = at(15), .ticket = 4},
                  {.begin_ns = at(15), .end_ns = at(17), .ticket = 4, .value = 1},
                  {.ticket = 4, .value = 1, .kind = KernelEvent::Kind::kCall},
                  {.begin_ns = at(17), .end_ns = at(18), .ticket = 5, .kind = KernelEvent::Kind::kCopy}},
       .names = {"decode", "join"}}));
  const Json report = write_profile_report(folder);
  EXPECT_EQ(report["timed"], "kernels");
  EXPECT_DOUBLE_EQ(row(report, "decode attention")["ms"].get<double>(), 10);
  EXPECT_EQ(row(report, "decode attention")["calls"], 1);
  EXPECT_DOUBLE_EQ(row(report, "decode attention")["gbytes_per_s"].get<double>(), 100);
  EXPECT_DOUBLE_EQ(row(report, "copies")["ms"].get<double>(), 1);
  EXPECT_DOUBLE_EQ(row(report, "idle")["ms"].get<double>(), 9);
  EXPECT_NEAR(report["accounted_percent"].get<double>(), 100, 1e-9);
  EXPECT_TRUE(row(report, "sampling").is_null()) << "the host's phases are no rows";
  std::map<std::string, double> idle_ms;
  for (const Json& phase : report["phases"]) idle_ms[phase["name"]] = phase["device_idle_ms"];
  EXPECT_DOUBLE_EQ(idle_ms["scheduling"], 2);
  EXPECT_DOUBLE_EQ(idle_ms["forward"], 5);
  EXPECT_DOUBLE_EQ(idle_ms["sampling"], 2);
  EXPECT_NE(text_of(folder / "launches.csv").find("\"decode\",1,8.0"), std::string::npos);
  EXPECT_NE(profile_comparison(write_profile_report(write("b", one_step())), report).find("differs: timed"),
            std::string::npos);
}

TEST_F(Profile, ColdStepsAreTold) {
  Window window = one_step();
  window.phase(Phase::kForward, 90).step(4096, 0, /*cold=*/true);
  const Json report = write_profile_report(write("a", window));
  ASSERT_EQ(report["window"]["cold_steps"].size(), 1u);
  EXPECT_EQ(report["window"]["cold_steps"][0]["prompt_tokens"], 4096);
  EXPECT_TRUE(notes_say(report, "Warm up"));
  EXPECT_FALSE(notes_say(write_profile_report(write("warm", one_step())), "Warm up"));
}

TEST_F(Profile, AServerThatWasKilledLeavesAReport) {
  const fs::path folder = write("a", one_step(), /*finished=*/false);
  std::ofstream(folder / kEventsFile, std::ios::app | std::ios::binary) << "half an event";
  const Json report = load_profile_report(folder);
  EXPECT_FALSE(report["finished"]);
  EXPECT_TRUE(notes_say(report, "never stopped"));
  EXPECT_DOUBLE_EQ(report["accounted_percent"].get<double>(), 100);
}

TEST_F(Profile, ComparesSharesOfTheBusyTime) {
  Window slow, fast;
  slow.op(ops::OpClass::kPrefillAttention, 49).op(ops::OpClass::kMatrixProduct, 51);
  slow.phase(Phase::kForward, 100).step(4096, 0);
  fast.op(ops::OpClass::kPrefillAttention, 7).op(ops::OpClass::kMatrixProduct, 93);
  fast.phase(Phase::kForward, 100).step(4096, 0);
  const Json before = write_profile_report(write("slow", slow));
  const std::string same = profile_comparison(before, write_profile_report(write("fast", fast)));
  EXPECT_NE(same.find("prefill attention"), std::string::npos);
  EXPECT_NE(same.find(" 49.00 % ->   7.00 %"), std::string::npos) << same;
  EXPECT_NE(same.find("  7.00x"), std::string::npos) << same;
  EXPECT_EQ(same.find("differs"), std::string::npos) << same;
  const std::string other = profile_comparison(before, write_profile_report(write("other", one_step())));
  EXPECT_NE(other.find("differs: prompt_tokens: 4096, then 0"), std::string::npos) << other;
  EXPECT_NE(other.find("not to be compared"), std::string::npos);
}

TEST_F(Profile, FilesThatAreNoneAreRefused) {
  EXPECT_THROW(load_profile_report(root_ / "nothing"), Error);
  const fs::path folder = write("a", one_step());
  fs::resize_file(folder / kEventsFile, 20);
  EXPECT_THROW(load_profile_report(folder), Error);
  std::ofstream(folder / kEventsFile) << std::string(100, 'x');
  EXPECT_THROW(load_profile_report(folder), Error);
  Window wrong;
  wrong.phase(static_cast<Phase>(77), 1);
  EXPECT_THROW(load_profile_report(write("wrong", wrong)), Error);
}

TEST(ProfileName, LeadsNowhereElse) {
  for (const char* good : {"a", "before-832", "run_2.b"}) EXPECT_EQ(profile_name_fault(good), "") << good;
  for (const char* bad : {"", ".", "..", ".hidden", "a/b", "/a", "a b", "a\\b", "a\n", "caf\xc3\xa9"})
    EXPECT_NE(profile_name_fault(bad), "") << bad;
  EXPECT_NE(profile_name_fault(std::string(65, 'a')), "");
}

// ---- the engine thread's side ----

TEST(StepTrace, PhasesLieEndToEndAndBlocksComeInOrder) {
  engine::StepTrace trace;
  int64_t last_end = 0;
  int ops = 0;
  const auto take_all = [&] {
    while (true) {
      std::vector<TraceEvent> block = trace.take(std::chrono::milliseconds(0));
      if (block.empty()) return;
      for (const TraceEvent& event : block) {
        if (event.kind == TraceEvent::Kind::kOp) {
          EXPECT_EQ(event.op.rows, ops++);
          continue;
        }
        EXPECT_TRUE(last_end == 0 || event.begin_ns == last_end);
        last_end = event.end_ns;
      }
      trace.give_back(std::move(block));
    }
  };
  trace.enter(Phase::kForward);  // nothing: it has not begun
  trace.begin();
  for (int i = 0; i < 100; ++i) {
    trace.enter(Phase::kForward);
    trace.on_op({.rows = i}, 1, 2);
    trace.enter(Phase::kSampling);
    if (i % 10 == 9) trace.idle();
    if (i % 30 == 29) take_all();
  }
  trace.end();
  trace.on_op({}, 1, 2);  // nothing: it has ended
  take_all();
  EXPECT_EQ(ops, 100);
  EXPECT_TRUE(trace.done());
  EXPECT_EQ(trace.num_lost(), 0);
}

TEST(StepTrace, LosesAndCountsWhereNobodyWrites) {
  engine::StepTrace trace;
  trace.begin();
  for (size_t i = 0; i < engine::kBlockEvents * (engine::kMaxBlocks + 2); ++i) {
    trace.on_op({}, 1, 2);
    if (i % 1000 == 0) trace.step_done({.decode_tokens = 1}, 1);
  }
  trace.end();
  EXPECT_GT(trace.num_lost(), 0);
}

TEST(StepTrace, EndsByItselfWhenItIsFull) {
  engine::StepTrace trace(/*max_events=*/10);
  trace.begin();
  for (int i = 0; i < 20; ++i) {
    trace.on_op({}, 1, 2);
    trace.step_done({.decode_tokens = 1}, 1);
  }
  EXPECT_TRUE(trace.full());
  EXPECT_FALSE(trace.take(std::chrono::milliseconds(0)).empty());
  EXPECT_TRUE(trace.done());
}

}  // namespace
}  // namespace longspan::measure
