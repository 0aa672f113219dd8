// `bench peak`, `kernel` and `context`: not how fast this machine is, but that what is said of it is what was
// measured.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "measure/context_bench.h"
#include "measure/kernel_bench.h"
#include "measure/peak_cache.h"
#include "ops/cpu/backend.h"
#include "ops/device/backend.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

KernelShapes small_shapes() {
  return {.source = "a test",
          .hidden = 64,
          .mlp = 96,
          .vocab = 512,
          .num_q_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 32,
          .rotary_dim = 16,
          .num_k_heads = 2,
          .num_v_heads = 4,
          .k_dim = 16,
          .v_dim = 16,
          .page_tokens = 64};
}

KernelBenchOptions quick(const std::string& op = "") {
  return {.op = op,
          .shapes = small_shapes(),
          .rows = {1, 80},
          .contexts = {128},
          .min_runs = 3,
          .limit_seconds = 0.01,
          .max_tries = 1,
          .cold_bytes = 1 << 16};
}

KernelResults run_small(const KernelBenchOptions& options, std::optional<Peaks> peaks = std::nullopt) {
  ops::Ops ops(ops::cpu::make_backend({.num_threads = 1}));
  return bench_kernels(ops, options, std::move(peaks), [](const std::string&) {});
}

TEST(KernelBench, RunsEveryOperationOfTheList) {
  const KernelResults results = run_small(quick());
  std::set<std::string> seen;
  for (const KernelFigure& figure : results.figures) {
    seen.insert(figure.what.op);
    EXPECT_GE(figure.times.us.size(), 3u) << figure.what.op;
    EXPECT_GT(figure.times.median(), 0) << figure.what.op;
    EXPECT_GT(figure.what.work.bytes, 0) << figure.what.op;
    EXPECT_TRUE(figure.what.cold) << figure.what.op << " " << figure.what.shape;
  }
  for (const PairFigure& pair : results.pairs) seen.insert(pair.b.what.op);
  // Of a device alone, a few numbers each: what a step's inputs cost says `bench input-prep`.
  for (const char* name : {"draw", "advance_inputs"}) seen.insert(name);
  for (size_t i = 0; i < ops::kNumOpKinds; ++i) {
    const std::string name(ops::to_string(static_cast<ops::OpKind>(i)));
    EXPECT_TRUE(seen.contains(name)) << name;
  }
}

TEST(KernelBench, PairsThatDoTheSameGiveTheSameBits) {
  const KernelResults results = run_small(quick());
  std::set<std::string> compared;
  for (const PairFigure& pair : results.pairs)
    if (pair.same_bits) {
      compared.insert(pair.b.what.variant);
      EXPECT_TRUE(*pair.same_bits) << pair.b.what.op << " " << pair.b.what.variant << " "
                                   << pair.b.what.shape;
    }
  EXPECT_EQ(compared, (std::set<std::string>{"fused", "page_contiguous_decode"}));
  std::set<std::string> variants;
  for (const PairFigure& pair : results.pairs) variants.insert(pair.b.what.variant);
  EXPECT_TRUE(variants.contains("vendor_prefill"));
  EXPECT_TRUE(variants.contains("int4"));
  EXPECT_TRUE(variants.contains("fp8"));
}

TEST(KernelBench, TheResultIsOfKindKernel) {
  const Json json = to_json(run_small(quick("rms_norm")));
  EXPECT_EQ(json["kind"], "kernel");
  ASSERT_EQ(json["figures"].size(), 2u);  // one for each number of rows
  EXPECT_EQ(json["figures"][0]["op"], "rms_norm");
  EXPECT_TRUE(json["figures"][0]["read_percent"].is_null()) << "no limit is known";
  EXPECT_TRUE(json["environment"].is_object());
}

TEST(KernelBench, SharesAreOfTheLimits) {
  const Peaks peaks{.of = {.threads = 1}, .read_gbytes = 10, .fp32_gflops = 100};
  const KernelResults results = run_small(quick("matmul"), peaks);
  const Json figure = to_json(results)["figures"][0];
  EXPECT_NEAR(figure["read_percent"].get<double>(), figure["gbytes_per_s"].get<double>() * 10, 1e-6);
  EXPECT_NEAR(figure["matrix_percent"].get<double>(), figure["tflops"].get<double>() * 1e3, 1e-6);
}

TEST(KernelBench, AnUnknownOperationIsRefused) { EXPECT_THROW(run_small(quick("matmull")), Error); }

TEST(KernelBench, SaysWhenTheTimeWasUp) {
  const KernelTimes times =
      time_calls([](Index) { ::usleep(2000); }, [] {}, {.min_runs = 30, .limit_seconds = 0.005});
  EXPECT_TRUE(times.limited);
  EXPECT_LT(times.us.size(), 30u);
  EXPECT_GE(times.us.size(), 3u);
}

// A run is as many calls as take the time that was asked for, and i counts all of them.
TEST(KernelTimes, ManyCallsInFrontOfOneWait) {
  Index last = -1;
  int waits = 0;
  const auto call = [&](Index i) {
    EXPECT_EQ(i, last + 1);
    last = i;
    ::usleep(100);
  };
  const KernelTimes times =
      time_calls(call, [&] { ++waits; }, {.min_runs = 4, .limit_seconds = 10, .run_seconds = 0.002});
  EXPECT_GT(last, 4 * waits);
  EXPECT_GE(times.best(), 100);
  EXPECT_TRUE(std::ranges::is_sorted(times.us));
}

// On whatever device the build has: the emulator here.
TEST(KernelBench, RunsOnADevice) {
  if (std::string_view(ops::device::vendor_name()) == "none") GTEST_SKIP() << "a build for the CPU alone";
  ops::Ops ops(ops::device::make_backend(0));
  for (const char* op : {"matmul", "attention", "gated_delta", "quantised", "rms_norm"}) {
    KernelBenchOptions options = quick(op);
    options.products = {{.n = 48, .k = 32}};
    options.rows = {1, 20};
    options.contexts = {64};
    options.cold_bytes = 1 << 12;
    options.min_runs = 1;
    options.limit_seconds = 1e-3;
    const KernelResults results = bench_kernels(ops, options, std::nullopt, [](const std::string&) {});
    EXPECT_FALSE(results.figures.empty() && results.pairs.empty()) << op;
    EXPECT_EQ(results.options.run_seconds, kDeviceRunSeconds);
    for (const KernelFigure& figure : results.figures) EXPECT_GT(figure.times.median(), 0);
    for (const PairFigure& pair : results.pairs) EXPECT_NE(pair.same_bits, std::optional(false)) << op;
  }
}

KernelFigure figure_taking(double us) { return {.times = {.us = {us, us, us}}}; }

TEST(KernelBench, APairWhoseAsDifferIsVoid) {
  PairFigure pair{.a_before = figure_taking(100), .b = figure_taking(50), .a_after = figure_taking(100.9)};
  EXPECT_FALSE(pair.is_void());
  EXPECT_DOUBLE_EQ(pair.ratio(), 2);
  pair.a_after = figure_taking(98.5);
  EXPECT_TRUE(pair.is_void());
  EXPECT_NE(pair_line(pair).find("VOID"), std::string::npos);
}

TEST(KernelBench, ShapesComeFromTheModel) {
  const KernelShapes shapes = shapes_of(
      io::load_model_config(LONGSPAN_SOURCE_DIR "/tests/fixtures/model-configs/qwen3.5-27b"), "27b");
  bool gate_up = false;
  for (const ProductShape& product : product_shapes(shapes))
    gate_up = gate_up || (product.n == 34816 && product.k == 5120);
  EXPECT_TRUE(gate_up);
}

// ---- peak ----

constexpr size_t kSmallBytes = 8 << 20;  // nobody reads the figures

class PeakCache : public ::testing::Test {
 protected:
  PeakCache() : folder_(fs::temp_directory_path() / ("longspan_peak_" + std::to_string(::getpid()))) {
    ::setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  ~PeakCache() override {
    ::unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder_);
  }
  fs::path folder_;
};

TEST_F(PeakCache, KeepsWhatWasMeasuredByThreads) {
  EXPECT_FALSE(cached_peaks(this_machine(1)));
  const Peaks peaks = measure_peaks(/*threads=*/1, /*seconds=*/0.01, kSmallBytes);
  EXPECT_GT(peaks.read_gbytes, 0);
  EXPECT_GT(peaks.copy_gbytes, 0);
  EXPECT_GT(peaks.fp32_gflops, 0);
  EXPECT_GT(peaks.processor_share, 0);
  store_peaks(peaks);
  const std::optional<Peaks> again = cached_peaks(this_machine(1));
  ASSERT_TRUE(again);
  EXPECT_DOUBLE_EQ(again->read_gbytes, peaks.read_gbytes);
  EXPECT_NEAR(again->matrix_gflops(DType::kBF16), peaks.matrix_gflops(DType::kBF16), 1e-6);
  EXPECT_FALSE(cached_peaks(this_machine(2)));
}

TEST_F(PeakCache, AFileThatIsNoneCounts) {
  const fs::path file = store_peaks(measure_peaks(1, 0.001, kSmallBytes));
  std::ofstream(file) << R"({"machine": "x"})";
  EXPECT_FALSE(cached_peaks(this_machine(1)));
  std::ofstream(file) << "[1, 2";
  EXPECT_FALSE(cached_peaks(this_machine(1)));
}

TEST_F(PeakCache, ADeviceHasItsOwn) {
  if (std::string_view(ops::device::vendor_name()) == "none") GTEST_SKIP() << "a build for the CPU alone";
  const std::unique_ptr<ops::Backend> device = ops::device::make_backend(0);
  const Peaks peaks = measure_device_peaks(*device, {.seconds = 1e-3, .memory_bytes = 1 << 14, .n = 16});
  for (const double figure :
       {peaks.read_gbytes, peaks.copy_gbytes, peaks.bf16_gflops, peaks.fp16_gflops, peaks.fp32_gflops})
    EXPECT_GT(figure, 0);
  store_peaks(peaks);
  const std::optional<Peaks> again = cached_peaks({.machine = device->name()});
  ASSERT_TRUE(again);
  EXPECT_NEAR(again->matrix_gflops(DType::kF16), peaks.fp16_gflops, 1e-9 * peaks.fp16_gflops);
  EXPECT_FALSE(cached_peaks(this_machine(1)));
}

// ---- context ----

TEST(GrowthFit, FindsTheLine) {
  const GrowthFit fit = fit_growth({{1000, 12}, {2000, 14}, {4000, 18}});
  EXPECT_NEAR(fit.constant_us, 10, 1e-9);
  EXPECT_NEAR(fit.slope_us, 0.002, 1e-12);
  EXPECT_NEAR(fit.worst_percent, 0, 1e-9);
  EXPECT_GT(fit_growth({{1000, 12}, {2000, 20}, {4000, 18}}).worst_percent, 5);
}

TEST(GrowthFit, OnePointIsALineToo) {
  const GrowthFit fit = fit_growth({{1000, 12}});
  EXPECT_DOUBLE_EQ(fit.at(5000), 12);
}

TEST(ContextBench, MeasuresEachContextAndFitsThem) {
  std::vector<std::string> lines;
  const ContextResult result =
      bench_context({.engine = {.model = LONGSPAN_SOURCE_DIR "/models/longspan-tiny", .num_threads = 1},
                     .first = 64,
                     .longest = 200,
                     .decoded = 4,
                     .rounds = 2},
                    [&](const std::string& line) { lines.push_back(line); });
  ASSERT_EQ(result.figures.size(), 3u);  // 64, 128, 200
  EXPECT_EQ(result.figures[2].context, 200);
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_EQ(result.answers[0].size(), 4u);
  const Json json = to_json(result);
  EXPECT_EQ(json["kind"], "context");
  EXPECT_GT(json["figures"][0]["prefill_us_per_token"], 0);
  EXPECT_NE(growth_plot(result).find('*'), std::string::npos);
  EXPECT_NE(growth_script(result, "out.png").find("set output 'out.png'"), std::string::npos);
}

TEST(ContextBench, RefusesWhatCannotBe) {
  EXPECT_THROW(bench_context({.first = 100, .longest = 50}, [](const std::string&) {}), Error);
  EXPECT_THROW(bench_context({.first = 100, .longest = 200, .decoded = 1}, [](const std::string&) {}), Error);
  // No context is left below what the model was made for, 65,536 tokens.
  EXPECT_THROW(bench_context({.engine = {.model = LONGSPAN_SOURCE_DIR "/models/longspan-tiny"},
                              .first = 65500,
                              .longest = 70000},
                             [](const std::string&) {}),
               Error);
}

}  // namespace
}  // namespace longspan::measure
