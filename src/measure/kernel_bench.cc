#include "measure/kernel_bench.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/units.h"
#include "measure/environment.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLeastCold = size_t{64} << 20;
constexpr size_t kMostCold = size_t{1} << 30;
constexpr size_t kDeviceCold = size_t{256} << 20;  // several times any card's

double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

double gbytes_of(const KernelFigure& figure) { return figure.what.work.bytes / figure.times.median() * 1e-3; }
double tflops_of(const KernelFigure& figure) { return figure.what.work.flops / figure.times.median() * 1e-6; }

KernelFigure figure_of(const KernelCase& what, const KernelBenchOptions& options,
                       const std::function<void()>& wait) {
  KernelFigure figure{what, time_calls(what.run, wait,
                                       {.min_runs = options.min_runs,
                                        .limit_seconds = options.limit_seconds,
                                        .run_seconds = options.run_seconds})};
  figure.what.run = nullptr;  // and with it the memory it holds
  figure.what.output = nullptr;
  return figure;
}

Json figure_json(const KernelFigure& figure, const std::optional<Peaks>& peaks) {
  const KernelCase& what = figure.what;
  const double gbytes = gbytes_of(figure), tflops = tflops_of(figure);
  const auto known = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  return {{"op", what.op},
          {"variant", what.variant},
          {"shape", what.shape},
          {"class", ops::to_string(what.work.op_class)},
          {"rows", what.work.rows},
          {"runs", figure.times.us.size()},
          {"time_limited", figure.times.limited},
          {"cold", what.cold},
          {"median_us", figure.times.median()},
          {"best_us", figure.times.best()},
          {"p90_us", figure.times.percentile(0.9)},
          {"gbytes_per_s", known(gbytes)},
          {"read_percent", known(peaks ? share(gbytes, peaks->read_gbytes) : 0)},
          {"tflops", known(tflops)},
          {"matrix_percent", known(peaks ? share(tflops * 1e3, peaks->matrix_gflops(DType::kBF16)) : 0)}};
}

Json pair_json(const PairFigure& pair, const std::optional<Peaks>& peaks) {
  return {{"op", pair.b.what.op},
          {"shape", pair.b.what.shape},
          {"a", figure_json(pair.a_before, peaks)},
          {"b", figure_json(pair.b, peaks)},
          {"a_again", figure_json(pair.a_after, peaks)},
          {"ratio", pair.ratio()},
          {"drift_percent", pair.drift_percent()},
          {"void", pair.is_void()},
          {"tries", pair.tries},
          {"same_bits", pair.same_bits ? Json(*pair.same_bits) : Json(nullptr)}};
}

// Which cases there are, each made when its turn comes: together they would not fit.
struct Plan {
  std::vector<std::function<KernelCase()>> singles;
  std::vector<std::function<KernelPair()>> pairs;
};

Plan plan_of(const KernelCases& cases, const KernelBenchOptions& options) {
  using Rows = KernelCases::Rows;
  const auto wants = [&](std::string_view op) { return options.op.empty() || options.op == op; };
  const KernelShapes& shapes = cases.shapes();
  const std::vector<ProductShape> products =
      options.products.empty() ? product_shapes(shapes) : options.products;
  constexpr Index kHeadRows = 64;  // logits are wanted for no more
  Plan plan;
  for (const Index rows : options.rows) {
    const auto kind = rows <= ops::kSkinnyRows ? Rows::kDecode : Rows::kPrompt;
    for (const ProductShape& product : products) {
      if (product.n == shapes.vocab && rows > kHeadRows) continue;
      if (wants("matmul"))
        plan.singles.push_back([&cases, product, rows] { return cases.matmul(product, rows); });
    }
    const auto add = [&](const char* op, KernelCase (KernelCases::*make)(Index) const) {
      if (wants(op)) plan.singles.push_back([&cases, make, rows] { return (cases.*make)(rows); });
    };
    add("rms_norm", &KernelCases::rms_norm);
    add("swiglu", &KernelCases::swiglu);
    add("embed", &KernelCases::embed);
    add("gather_rows", &KernelCases::gather_rows);
    add("rope_angles", &KernelCases::rope_angles);
    add("qk_rope_write", &KernelCases::qk_rope_write);
    if (rows <= kHeadRows) add("best_column", &KernelCases::best_column);
    if (shapes.num_k_heads > 0) {
      if (wants("causal_conv"))
        plan.singles.push_back([&cases, rows, kind] { return cases.causal_conv(rows, kind); });
      if (wants("gated_delta"))
        plan.singles.push_back([&cases, rows, kind] { return cases.gated_delta(rows, kind); });
    }
    if (wants("matmul_swiglu")) plan.pairs.push_back([&cases, rows] { return cases.gate_up(rows); });
    if (wants("quantised"))
      for (const ops::CodeKind code : {ops::CodeKind::kInt4, ops::CodeKind::kE4M3})
        plan.pairs.push_back([&cases, rows, code, product = products[products.size() / 2]] {
          return cases.quantised(product, rows, code);
        });
    if (wants("attention"))
      for (const Index kv_len : options.contexts)
        if (rows == 1 || (rows > ops::kSkinnyRows && rows <= kv_len))
          plan.pairs.push_back([&cases, rows, kv_len] { return cases.attention(rows, kv_len); });
  }
  return plan;
}

}  // namespace

double PairFigure::drift_percent() const {
  return 100 * (a_after.times.median() / a_before.times.median() - 1);
}
bool PairFigure::is_void() const { return std::abs(drift_percent()) > kMaxDriftPercent; }
double PairFigure::ratio() const {
  return std::min(a_before.times.median(), a_after.times.median()) / b.times.median();
}

PairFigure time_pair(const KernelPair& pair, const KernelBenchOptions& options,
                     const std::function<void()>& wait) {
  PairFigure figure;
  for (int tries = 1;; ++tries) {
    figure.a_before = figure_of(pair.a, options, wait);
    figure.b = figure_of(pair.b, options, wait);
    figure.a_after = figure_of(pair.a, options, wait);
    figure.tries = tries;
    if (!figure.is_void() || tries >= options.max_tries) break;
  }
  if (pair.bits_equal && pair.a.output && pair.b.output) {
    pair.a.run(0);
    wait();
    const std::vector<uint8_t> a = pair.a.output();
    pair.b.run(0);
    wait();
    figure.same_bits = a == pair.b.output();
  }
  return figure;
}

KernelResults bench_kernels(ops::Ops& ops, const KernelBenchOptions& asked, std::optional<Peaks> peaks,
                            const std::function<void(const std::string&)>& tell) {
  KernelResults results{.device = ops.name(), .options = asked, .peaks = std::move(peaks)};
  KernelBenchOptions& options = results.options;
  const bool on_host = ops.memory().is_host();
  if (!on_host) options.run_seconds = kDeviceRunSeconds;
  if (options.cold_bytes == 0)
    options.cold_bytes = on_host ? std::clamp(2 * last_cache_bytes(), kLeastCold, kMostCold) : kDeviceCold;
  const KernelCases cases(ops, options.shapes, options.cold_bytes);
  const Plan plan = plan_of(cases, options);
  if (plan.singles.empty() && plan.pairs.empty())
    fail(ErrorKind::kInvalid,
         "--op: got '{}', need matmul, matmul_swiglu, quantised, attention, gated_delta, causal_conv, "
         "rms_norm, "
         "swiglu, embed, gather_rows, rope_angles, qk_rope_write or best_column, with rows that it takes",
         options.op);
  const auto wait = [&ops] { ops.memory().synchronize(); };
  if (!plan.singles.empty()) tell(kernel_header());
  for (const auto& make : plan.singles) {
    results.figures.push_back(figure_of(make(), options, wait));
    tell(kernel_line(results.figures.back(), results.peaks));
  }
  for (const auto& make : plan.pairs) {
    results.pairs.push_back(time_pair(make(), options, wait));
    const PairFigure& pair = results.pairs.back();
    tell(kernel_line(pair.a_before, results.peaks));
    tell(kernel_line(pair.b, results.peaks));
    tell(pair_line(pair));
  }
  return results;
}

std::string kernel_header() {
  return fmt::format("{:<14} {:<22} {:<34} {:>6} {:>11} {:>11} {:>8} {:>6} {:>9} {:>6}", "operation",
                     "variant", "shape", "runs", "median us", "best us", "GB/s", "% read", "TFLOP/s",
                     "% peak");
}

std::string kernel_line(const KernelFigure& figure, const std::optional<Peaks>& peaks) {
  const double gbytes = gbytes_of(figure), tflops = tflops_of(figure);
  const auto text = [](double value, int decimals) {
    return value > 0 ? fmt::format("{:.{}f}", value, decimals) : std::string("-");
  };
  std::string line = fmt::format(
      "{:<14} {:<22} {:<34} {:>6} {:>11.1f} {:>11.1f} {:>8} {:>6} {:>9} {:>6}", figure.what.op,
      figure.what.variant, figure.what.shape, figure.times.us.size(), figure.times.median(),
      figure.times.best(), text(gbytes, 1), text(peaks ? share(gbytes, peaks->read_gbytes) : 0, 0),
      text(tflops, 4), text(peaks ? share(tflops * 1e3, peaks->matrix_gflops(DType::kBF16)) : 0, 0));
  if (figure.times.limited) line += "  time was up";
  if (!figure.what.cold) line += "  not cold";
  return line;
}

std::string pair_line(const PairFigure& pair) {
  std::string line = fmt::format(
      "  A/B/A {:.1f} / {:.1f} / {:.1f} us: {} is {:.2f} times as fast as {}; the A's differ by {:+.2f} %",
      pair.a_before.times.median(), pair.b.times.median(), pair.a_after.times.median(), pair.b.what.variant,
      pair.ratio(), pair.a_before.what.variant, pair.drift_percent());
  if (pair.is_void()) line += fmt::format(": VOID after {} tries", pair.tries);
  if (pair.same_bits) line += *pair.same_bits ? "; same bits" : "; OTHER BITS";
  return line;
}

Json to_json(const KernelResults& results) {
  Json figures = Json::array(), pairs = Json::array();
  for (const KernelFigure& figure : results.figures) figures.push_back(figure_json(figure, results.peaks));
  for (const PairFigure& pair : results.pairs) pairs.push_back(pair_json(pair, results.peaks));
  return {{"kind", "kernel"},
          {"device", results.device},
          {"shapes_of", results.options.shapes.source},
          {"min_runs", results.options.min_runs},
          {"limit_seconds", results.options.limit_seconds},
          {"run_seconds", results.options.run_seconds},
          {"cold_bytes", results.options.cold_bytes},
          {"peak", results.peaks ? to_json(*results.peaks) : Json(nullptr)},
          {"figures", std::move(figures)},
          {"pairs", std::move(pairs)},
          {"environment", to_json(read_environment(AskDevices::kNo))}};
}

size_t last_cache_bytes() {
  size_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    size_t kib = 0;
    if (file >> kib) largest = std::max(largest, kib << 10);  // "307200K"
  }
  return largest;
}

}  // namespace longspan::measure
