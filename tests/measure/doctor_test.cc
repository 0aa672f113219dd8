// Each trap of the field reports that is one of machine, build or config, and what doctor says of it.
#include <gtest/gtest.h>

#include "measure/doctor.h"
#include "measure/fake_root.h"

namespace longspan::measure {
namespace {

using testing::FakeRoot;

const std::filesystem::path kSource = LONGSPAN_SOURCE_DIR;

// The first finding of that topic that is not ok; else the first of the topic; fails where there is none.
Finding worst(const Findings& findings, std::string_view topic) {
  const Finding* found = nullptr;
  for (const Finding& one : findings)
    if (one.topic == topic && (found == nullptr || one.verdict > found->verdict)) found = &one;
  if (found == nullptr) ADD_FAILURE() << "nothing about " << topic << " in\n" << to_text(findings);
  return found == nullptr ? Finding() : *found;
}

bool says(const Finding& finding, std::string_view words) {
  return (finding.text + "\n" + finding.advice).find(words) != std::string::npos;
}

Environment small_machine() {
  Environment environment{.version = "1.0", .device_vendor = "emulator"};
  environment.machine = {.cpu_model = "CPU",
                         .isa = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"},
                         .num_cpus = 4,
                         .num_cores = 4,
                         .num_usable_cpus = 4,
                         .memory_bytes = size_t{64} << 30,
                         .available_bytes = size_t{32} << 30,
                         .nodes = {{}}};
  environment.program = {.pid = 1, .path = "/opt/longspan", .hash = "aa"};
  return environment;
}

TEST(DoctorMachine, AHealthyOneHasNothingToDo) {
  const Findings findings = judge_machine(small_machine());
  for (const Finding& one : findings) EXPECT_EQ(one.verdict, Verdict::kOk) << to_text({one});
  EXPECT_FALSE(any_failed(findings));
}

TEST(DoctorMachine, KillsOfOtherGroupsAreNotOurs) {
  Environment environment = small_machine();
  environment.group = {.version = 2, .path = "/ours"};
  environment.machine.oom_kills_since_boot = 5;
  const Finding others = worst(judge_machine(environment), "oom");
  EXPECT_EQ(others.verdict, Verdict::kOk);
  EXPECT_TRUE(says(others, "none in this cgroup; 5 elsewhere")) << others.text;

  environment.group.oom_kills = 2;
  const Finding ours = worst(judge_machine(environment), "oom");
  EXPECT_EQ(ours.verdict, Verdict::kFail);
  EXPECT_TRUE(says(ours, "2 killed in this cgroup")) << ours.text;
  EXPECT_TRUE(says(ours, "3 elsewhere")) << ours.text;
}

TEST(DoctorMachine, AQuotaBelowTheProcessorsIsNamedWithTheThreadsToTake) {
  Environment environment = small_machine();
  environment.group = {.version = 2, .path = "/ours", .cpu_limit = 1.5};
  const Finding finding = worst(judge_machine(environment), "cgroup");
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(finding, "--threads 1")) << finding.advice;
}

TEST(DoctorMachine, AProcessorWithoutBf16IsSlower) {
  Environment environment = small_machine();
  environment.machine.isa = {"avx2"};
  EXPECT_EQ(worst(judge_machine(environment), "cpu").verdict, Verdict::kWarn);
}

TEST(DoctorLimits, FewOpenFilesFail) {
  const FakeRoot root;
  const auto with_limit = [&](const std::string& soft) {
    root.write("proc/self/limits",
               "Limit                     Soft Limit           Hard Limit           Units\n"
               "Max open files            " +
                   soft + "                 4096                 files\n");
    return worst(judge_limits(root.path(), {}), "open files");
  };
  EXPECT_EQ(with_limit("65536").verdict, Verdict::kOk);
  EXPECT_EQ(with_limit("1024").verdict, Verdict::kWarn);
  const Finding low = with_limit("64");
  EXPECT_EQ(low.verdict, Verdict::kFail);
  EXPECT_TRUE(says(low, "ulimit -n")) << low.advice;
}

TEST(DoctorLimits, DisksSayHowMuchIsFree) {
  EXPECT_TRUE(says(worst(judge_limits("/", {"/"}), "disk"), "free of"));
  EXPECT_EQ(worst(judge_limits("/", {"/no/such/folder"}), "disk").verdict, Verdict::kWarn);
}

const Shell kNoPrograms = [](const std::string&) { return std::optional<std::string>(); };

TEST(DoctorDevices, ABuildForACardThatIsNotThereFails) {
  const FakeRoot root;
  Environment environment = small_machine();
  EXPECT_EQ(worst(judge_devices(environment, root.path(), kNoPrograms), "devices").verdict, Verdict::kOk);
  environment.device_vendor = "hip";
  const Finding absent = worst(judge_devices(environment, root.path(), kNoPrograms), "devices");
  EXPECT_EQ(absent.verdict, Verdict::kFail);
  EXPECT_TRUE(says(absent, "/dev/kfd")) << absent.advice;
}

TEST(DoctorDevices, ACardThatThisBuildCannotUseIsNamed) {
  const FakeRoot root;
  root.write("dev/kfd", "");
  const Finding unused = worst(judge_devices(small_machine(), root.path(), kNoPrograms), "devices");
  EXPECT_EQ(unused.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(unused, "LONGSPAN_HIP")) << unused.advice;
}

TEST(DoctorDevices, ADriverOlderThanTheRuntimeFails) {
  const FakeRoot root;
  Environment environment = small_machine();
  environment.device_vendor = "cuda";
  environment.devices = {{.name = "H200", .arch = "sm_90", .driver = "12.4", .runtime = "13.0"}};
  EXPECT_EQ(worst(judge_devices(environment, root.path(), kNoPrograms), "device 0").verdict, Verdict::kFail);
  environment.devices[0].driver = "13.1";
  environment.products = {"none: no kernels for gfx906"};
  EXPECT_EQ(worst(judge_devices(environment, root.path(), kNoPrograms), "products 0").text,
            "library for prompt rows: none: no kernels for gfx906");
  EXPECT_EQ(worst(judge_devices(environment, root.path(), kNoPrograms), "device 0").verdict, Verdict::kOk);
}

TEST(DoctorDevices, ToolkitsAndProgramsOfTheVendorSpeak) {
  const FakeRoot root;
  root.write("opt/dtk-26.04/.info/version", "26.04\n");
  root.write("opt/rocm/.info/version", "6.3.0-39\n");
  root.write("usr/local/cuda/version.json", R"({"cuda" : { "name" : "CUDA SDK", "version" : "13.0.1" }})");
  const Findings findings = judge_devices(small_machine(), root.path(), [](const std::string& command) {
    return command.starts_with("nvidia-smi") ? std::optional<std::string>("H200, 580.1\n") : std::nullopt;
  });
  EXPECT_TRUE(says(worst(findings, "dtk"), "/opt/dtk-26.04: 26.04"));
  EXPECT_TRUE(says(worst(findings, "rocm"), "6.3.0-39"));
  EXPECT_TRUE(says(worst(findings, "cuda"), "13.0.1"));
  EXPECT_TRUE(says(worst(findings, "nvidia-smi"), "H200, 580.1"));
}

TEST(DoctorTools, AProgramWithoutItsExecutableBitIsNoLibraryProblem) {
  const FakeRoot root;
  root.write("opt/dtk-26.04/lib/rocblas/benchmark_tool/rocblas-bench", "");
  root.write("usr/bin/perf", "");
  root.allow_running("usr/bin/perf");
  const Findings findings = judge_tools(root.path(), "/usr/bin:/bin");
  const Finding locked = worst(findings, "tools");
  EXPECT_EQ(locked.verdict, Verdict::kFail);
  EXPECT_TRUE(says(locked, "chmod +x /opt/dtk-26.04/lib/rocblas/benchmark_tool/rocblas-bench"))
      << to_text(findings);
  EXPECT_TRUE(says(findings.front(), "/usr/bin/perf")) << to_text(findings);

  root.allow_running("opt/dtk-26.04/lib/rocblas/benchmark_tool/rocblas-bench");
  const Finding hidden = worst(judge_tools(root.path(), "/usr/bin:/bin"), "tools");
  EXPECT_EQ(hidden.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(hidden, "export PATH=$PATH:/opt/dtk-26.04/lib/rocblas/benchmark_tool")) << hidden.advice;
}

// ---- a server ----

// A server of pid 42 that was started from /opt/longspan when that held "old build". `link` is what /proc
// says of it.
ServerFacts server_on(const FakeRoot& root, const std::string& link) {
  root.write("old", "old build");
  root.write("proc/42/stat", "42 (longspan) S 1\n");
  root.link("proc/42/exe", link);
  return {.base_url = "http://127.0.0.1:8000",
          .version = "1.0",
          .path = "/opt/longspan",
          .hash = build_hash(root.path() / "old"),
          .pid = 42};
}

Finding build_finding(const FakeRoot& root, const ServerFacts& server) {
  Environment environment = small_machine();
  environment.program.hash = server.hash;
  return worst(judge_build(server, environment, root.path()), "server build");
}

TEST(DoctorBuild, AServerOfTheFileOnDiskIsWell) {
  const FakeRoot root;
  const ServerFacts server = server_on(root, "/opt/longspan");
  root.write("opt/longspan", "old build");
  EXPECT_EQ(build_finding(root, server).verdict, Verdict::kOk);
}

TEST(DoctorBuild, AServerFromAnotherBuildThanTheFileOnDiskFails) {
  const FakeRoot root;
  const ServerFacts server = server_on(root, "/opt/longspan");
  root.write("opt/longspan", "new build");
  const Finding other = build_finding(root, server);
  EXPECT_EQ(other.verdict, Verdict::kFail);
  EXPECT_TRUE(says(other, "started from another build than the one on disk")) << other.text;
  EXPECT_TRUE(says(other, "it runs " + server.hash.substr(0, 19))) << other.text;
  EXPECT_TRUE(says(other, "restart")) << other.advice;
}

TEST(DoctorBuild, ADeletedFileFails) {
  const FakeRoot root;
  const ServerFacts server = server_on(root, "/opt/longspan (deleted)");
  const Finding gone = build_finding(root, server);
  EXPECT_EQ(gone.verdict, Verdict::kFail);
  EXPECT_TRUE(says(gone, "the file is gone")) << gone.text;
}

TEST(DoctorBuild, ALibraryThatWasReplacedFails) {
  const FakeRoot root;
  const ServerFacts server = server_on(root, "/opt/longspan");
  root.write("opt/longspan", "old build");
  root.write("proc/42/maps", "3-4 r-xp 0 08:01 2 /opt/dtk/lib/libhipblaslt.so.0 (deleted)\n");
  Environment environment = small_machine();
  const Finding replaced = worst(judge_build(server, environment, root.path()), "libraries");
  EXPECT_EQ(replaced.verdict, Verdict::kFail);
  EXPECT_TRUE(says(replaced, "libhipblaslt.so.0 was replaced")) << replaced.text;
}

TEST(DoctorBuild, ADoctorOfAnotherBuildSaysSo) {
  const FakeRoot root;
  const ServerFacts server{.base_url = "http://far:8000", .path = "/srv/longspan", .hash = "bb", .pid = 42};
  const Finding finding = worst(judge_build(server, small_machine(), root.path()), "server build");
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(finding, "the server is build bb, this program is aa")) << finding.text;
}

TEST(DoctorProcesses, AProcessWhoseFileIsGoneFails) {
  const FakeRoot root;
  root.write("proc/77/cmdline", std::string("longspan\0serve\0", 15));
  root.write("proc/77/stat", "77 (longspan) S 1\n");
  root.link("proc/77/exe", "/opt/longspan (deleted)");
  const Finding stale =
      worst(judge_processes(small_machine(), root.path(), std::nullopt, std::nullopt), "processes");
  EXPECT_EQ(stale.verdict, Verdict::kFail);
  EXPECT_TRUE(says(stale, "pid 77 (longspan serve)")) << stale.text;
}

TEST(DoctorProcesses, AnotherServerSharesTheMachine) {
  const FakeRoot root;
  root.write("proc/77/cmdline", std::string("longspan\0serve\0", 15));
  root.write("proc/77/stat", "77 (longspan) S 1\n");
  root.link("proc/77/exe", "/opt/longspan");
  const Finding other =
      worst(judge_processes(small_machine(), root.path(), std::nullopt, std::nullopt), "processes");
  EXPECT_EQ(other.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(other, "pid 77 (longspan serve) serves, too")) << other.text;
}

TEST(DoctorProcesses, WhoeverHoldsCardOrPortIsNamed) {
  const FakeRoot root;
  root.link("proc/7/fd/3", "/dev/kfd");
  root.write("proc/7/cmdline", std::string("hipprof\0", 8));
  root.link("proc/9/fd/6", "socket:[555]");
  root.write("proc/9/cmdline", std::string("python3\0", 8));
  root.write("proc/net/tcp", "0: 0100007F:1F40 00000000:0000 0A 0:0 00:0 00000000 0 0 555 1 0\n");
  const Findings findings = judge_processes(small_machine(), root.path(), 8000, std::nullopt);
  EXPECT_TRUE(says(worst(findings, "device in use"), "/dev/kfd by pid 7 (hipprof)")) << to_text(findings);
  EXPECT_EQ(worst(findings, "device in use").verdict, Verdict::kWarn);
  EXPECT_TRUE(says(worst(findings, "port"), "pid 9 (python3) listens on 8000")) << to_text(findings);
}

TEST(DoctorConfig, ADifferenceNamesBothValuesAndTheirSources) {
  io::Config config;
  config.load_toml("[cache]\nalignment_tokens = 64\n", "page832.toml");
  ServerFacts server{.base_url = "http://127.0.0.1:8000"};
  for (const io::Config::Setting& setting : io::Config().settings())
    server.settings.push_back({setting.name, setting.value, setting.source});
  const Finding unread = worst(judge_config(server, config), "config");
  EXPECT_EQ(unread.verdict, Verdict::kFail);
  EXPECT_TRUE(says(unread,
                   "cache.alignment_tokens: the server runs 0 (from default), here it is 64 (from "
                   "page832.toml)"))
      << unread.text;

  for (ServerFacts::Setting& setting : server.settings)
    if (setting.key == "cache.alignment_tokens") setting.source = "--alignment";
  const Finding meant = worst(judge_config(server, config), "config");
  EXPECT_EQ(meant.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(meant, "--alignment wins over its file")) << meant.advice;
}

// ---- the page ----

engine::EngineOptions options_27b(int64_t alignment) {
  engine::EngineOptions options{.model = kSource / "tests/fixtures/model-configs/qwen3.5-27b",
                                .max_model_len = 32768,
                                .max_num_seqs = 1,
                                .memory_bytes = size_t{80} << 30};
  options.pages.alignment = alignment;
  return options;
}

ServerFacts server_with_page(int64_t tokens, int64_t alignment, bool caching) {
  return {.base_url = "http://127.0.0.1:8000",
          .page_tokens = tokens,
          .alignment = alignment,
          .layout = "unified",
          .prefix_caching = caching};
}

TEST(DoctorPlan, APageOf784Where832IsExpectedFailsWithTheRule) {
  const engine::EngineOptions options = options_27b(64);
  const Finding page = worst(judge_plan(&options, server_with_page(784, 16, false)), "page plan");
  EXPECT_EQ(page.verdict, Verdict::kFail);
  EXPECT_TRUE(says(page, "784 tokens (alignment 16")) << page.text;
  EXPECT_TRUE(says(page, "expected 832 tokens (alignment 64")) << page.text;
  EXPECT_TRUE(says(page, "a state takes the room of")) << page.text;
  EXPECT_TRUE(says(page, "cache.alignment_tokens: 16 there, 64 here")) << page.advice;
}

TEST(DoctorPlan, SettingsThatExpect832ButGive784Fail) {
  engine::EngineOptions options = options_27b(16);
  options.pages.target_page_tokens = 832;
  const Finding page = worst(judge_plan(&options, std::nullopt), "page plan");
  EXPECT_EQ(page.verdict, Verdict::kFail);
  EXPECT_TRUE(says(page, "784")) << page.text;
  EXPECT_TRUE(says(page, "832 tokens need alignment 64")) << page.text;
}

TEST(DoctorPlan, A784PageClosesTheVendorPath) {
  const engine::EngineOptions options = options_27b(16);
  const Finding paths = worst(judge_plan(&options, std::nullopt), "paths");
  EXPECT_EQ(paths.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(paths, "784 % 64 = 16")) << paths.text;
  const engine::EngineOptions aligned = options_27b(64);
  EXPECT_EQ(worst(judge_plan(&aligned, std::nullopt), "paths").verdict, Verdict::kOk);
}

TEST(DoctorPlan, PrefixCachingMakesThePage1024AndIsSaid) {
  engine::EngineOptions options = options_27b(64);
  options.pages.prefix_caching = true;
  const Finding caching = worst(judge_plan(&options, std::nullopt), "prefix caching");
  EXPECT_EQ(caching.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(caching, "1024")) << caching.text;

  const engine::EngineOptions off = options_27b(64);
  const Findings against = judge_plan(&off, server_with_page(1024, 64, true));
  EXPECT_EQ(worst(against, "page plan").verdict, Verdict::kFail);
  EXPECT_TRUE(says(worst(against, "page plan"), "they differ in prefix caching")) << to_text(against);
}

TEST(DoctorPlan, APathThatWasNeverHitIsNamed) {
  ServerFacts server = server_with_page(832, 64, false);
  server.hits = {{"unified", 12}, {"vendor_prefill", 0}, {"page_contiguous_decode", 80}};
  server.vendor_prefill_misses = {{"page_multiple", 12}};
  const Finding finding = worst(judge_plan(nullptr, server), "dispatch");
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_TRUE(says(finding, "page_multiple 12")) << finding.text;
}

TEST(ServerFacts, ReadsWhatAServerSaysAndRefusesOthers) {
  const ServerFacts facts = server_facts(
      R"({"model":"m","plan":{"page_tokens":832,"alignment":64,"layout":"unified","prefix_caching":false,
          "derivation":["a","b"]},"dispatch":{"hits":{"unified":3},"vendor_prefill_misses":{}},
          "build":{"path":"/opt/longspan","version":"1","hash":"aa","pid":42,"started_at":5},
          "config":[{"key":"server.port","value":"8000","source":"default"}]})",
      "http://x");
  EXPECT_EQ(facts.page_tokens, 832);
  EXPECT_EQ(facts.hash, "aa");
  EXPECT_EQ(facts.pid, 42);
  EXPECT_EQ(facts.hits.at("unified"), 3);
  ASSERT_NE(facts.setting("server.port"), nullptr);
  EXPECT_EQ(facts.setting("server.port")->value, "8000");
  EXPECT_EQ(facts.setting("nothing"), nullptr);
  for (const char* text : {"", "[]", "{\"plan\":{}}", "{\"plan\":3,\"dispatch\":[]}", "<html>"})
    EXPECT_THROW(server_facts(text, "http://x"), Error) << text;
}

}  // namespace
}  // namespace longspan::measure
