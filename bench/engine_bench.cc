// The whole engine on a model's shape with random weights, against what this machine can do:
//   longspan_engine_bench CONFIG_JSON [prefill tokens, 0: none] [decode contexts, comma separated] [tokens of
//   a step]
// Prefill: matrix flops of one prompt over its time, as a share of the yardstick library's best bf16 product
// (f32 where it has none for this processor).
// Decode: weights + KV + state bytes of one token over its time, as a share of a plain reader's bandwidth.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/units.h"
#include "engine/engine.h"
#include "engine/host_memory.h"
#include "measure/peaks.h"
#include "timed_request.h"
#include "yardstick.h"

namespace longspan::bench {
namespace {

constexpr int kPrefillRounds = 7;  // after one warm-up of the same shape
constexpr int kDecodeRounds = 3;
constexpr int64_t kDecoded = 48;        // tokens a decode measurement is made of
constexpr double kSearchSeconds = 0.3;  // of each yardstick shape, to find the fastest
constexpr double kPeakSeconds = 0.7;    // of that one, before and after each prompt

// Flops of the products of one prompt: projections, scores and weighted sums (causal half), and the chunked
// delta rule.
struct PrefillFlops {
  double projections = 0;
  double attention = 0;
  double delta = 0;
  double total() const { return projections + attention + delta; }
};

PrefillFlops prefill_flops(const io::ModelConfig& config, double n) {
  PrefillFlops flops;
  const auto h = static_cast<double>(config.hidden_size);
  const double mlp = 3.0 * h * static_cast<double>(config.intermediate_size);
  const double q_rows = static_cast<double>(config.q_width()) * (config.attn_output_gate ? 2 : 1);
  const double attention =
      h * (q_rows + 2.0 * static_cast<double>(config.kv_width()) + static_cast<double>(config.q_width()));
  const auto vd = static_cast<double>(config.linear_value_width());
  const double delta = h * (static_cast<double>(config.conv_channels()) + 2 * vd +
                            2.0 * static_cast<double>(config.linear_num_value_heads));
  const auto num_full = static_cast<double>(config.num_layers_of(io::LayerKind::kFullAttention));
  const double num_linear = static_cast<double>(config.num_layers()) - num_full;
  flops.projections =
      2 * n * (mlp * static_cast<double>(config.num_layers()) + attention * num_full + delta * num_linear);
  flops.attention = num_full * 4.0 * static_cast<double>(config.q_width()) * n * n / 2;
  // A chunk of c tokens and one head: k k^T, q k^T (dk), T v, T k, the masked product (dv, dk, dv), and w s,
  // q s, k^T v (dk dv).
  const auto c = static_cast<double>(ops::kGdnChunk);
  const auto dk = static_cast<double>(config.linear_key_head_dim);
  const auto dv = static_cast<double>(config.linear_value_head_dim);
  const double chunk = 2 * (3 * c * c * dk + 2 * c * c * dv + 3 * c * dk * dv);
  flops.delta = num_linear * static_cast<double>(config.linear_num_value_heads) * n / c * chunk;
  return flops;
}

struct Shape {
  Index m = 0, n = 0, k = 0;
};

// flop/s of the yardstick on one shape; 0 without a yardstick.
double yardstick_rate(const Shape& shape, double seconds_spent) {
  const double seconds = yardstick_seconds(shape.m, shape.n, shape.k, /*num_weights=*/1, seconds_spent);
  return seconds > 0 ? 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                           static_cast<double>(shape.k) / seconds
                     : 0;
}

// Of the projections' shapes, the one the yardstick is fastest on.
Shape yardstick_best(const io::ModelConfig& config, Index num_rows) {
  const std::pair<Index, Index> shapes[] = {
      {2 * config.intermediate_size, config.hidden_size},
      {config.hidden_size, config.intermediate_size},
      {config.conv_channels() + config.linear_value_width(), config.hidden_size},
      {config.hidden_size, config.q_width()}};
  Shape best;
  double best_rate = -1;
  for (const auto& [n, k] : shapes)
    for (Index m : {num_rows, Index{512}, Index{128}}) {
      if (n == 0) continue;
      const Shape shape{m, n, k};
      const double rate = yardstick_rate(shape, kSearchSeconds);
      if (rate > best_rate) best = shape;
      best_rate = std::max(rate, best_rate);
    }
  return best;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The machine is shared and its speed drifts within seconds, so each prompt stands between two measurements
// of the yardstick (A/B/A) and is compared with the faster one.
void bench_prefill(engine::Engine& engine, int64_t num_tokens) {
  const io::ModelConfig& config = engine.info().config;
  const PrefillFlops flops = prefill_flops(config, static_cast<double>(num_tokens));
  const Shape best = yardstick_best(config, num_tokens);
  time_request(engine, num_tokens, 1);  // warm-up of the same shape
  std::vector<double> seconds;
  std::vector<double> peaks;
  std::vector<double> shares;
  double peak_before = yardstick_rate(best, kPeakSeconds);
  for (int i = 0; i < kPrefillRounds; ++i) {
    seconds.push_back(time_request(engine, num_tokens, 1).ttft);
    const double peak_after = yardstick_rate(best, kPeakSeconds);
    peaks.push_back(std::max(peak_before, peak_after));
    shares.push_back(peaks.back() > 0 ? flops.total() / seconds.back() / peaks.back() : 0);
    peak_before = peak_after;
  }
  const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
  fmt::print(
      "prefill {:>6} tokens  {:.3f} s ({:.3f} .. {:.3f})  {:.0f} tokens/s  {:.3f} TFLOP/s ({:.0f} % "
      "projections, {:.0f} % attention, {:.0f} % delta rule)\n",
      num_tokens, median(seconds), *fastest, *slowest, static_cast<double>(num_tokens) / median(seconds),
      flops.total() / median(seconds) * 1e-12, 100 * flops.projections / flops.total(),
      100 * flops.attention / flops.total(), 100 * flops.delta / flops.total());
  if (peaks.front() > 0) {
    const auto [lowest, highest] = std::minmax_element(shares.begin(), shares.end());
    fmt::print("  yardstick in {}, {} x {} x {}: {:.3f} TFLOP/s; share of it {:.0f} % ({:.0f} .. {:.0f})\n",
               dtype_name(yardstick_dtype()), best.m, best.n, best.k, median(peaks) * 1e-12,
               100 * median(shares), 100 * *lowest, 100 * *highest);
  }
  std::fflush(stdout);
}

// One prompt, and kDecodeRounds runs of kDecoded tokens behind it.
void bench_decode(engine::Engine& engine, ThreadPool& pool, const Buffer& memory, int64_t context) {
  const engine::EngineInfo& info = engine.info();
  const double before = measure::read_gbytes(pool, memory);
  const auto submitted = engine::Clock::now();
  engine::Response response = submit_arbitrary(engine, context, kDecodeRounds * kDecoded + 1);
  const std::vector<engine::Clock::time_point> times = token_times(response);
  std::vector<double> seconds;  // a token, of each run
  for (size_t first = 0; first + kDecoded < times.size(); first += kDecoded) {
    std::vector<double> gaps;
    for (size_t i = first; i < first + kDecoded; ++i) gaps.push_back(seconds_between(times[i], times[i + 1]));
    seconds.push_back(median(gaps));
  }
  const double bandwidth = std::max(before, measure::read_gbytes(pool, memory));
  std::sort(seconds.begin(), seconds.end());
  const double token_seconds = median(seconds);
  const auto num_full = static_cast<double>(info.config.num_layers_of(io::LayerKind::kFullAttention));
  const double num_linear = static_cast<double>(info.config.num_layers()) - num_full;
  const double weights = static_cast<double>(info.weight_bytes);
  const double kv = num_full * static_cast<double>(info.page_plan.kv_bytes_per_token) *
                    static_cast<double>(context + kDecodeRounds * kDecoded / 2);
  const double state =
      2 * num_linear * static_cast<double>(info.page_plan.state.size_bytes);  // read and written
  const double rate = (weights + kv + state) / token_seconds * 1e-9;
  fmt::print(
      "decode at {:>6}  {:.2f} ms a token ({:.2f} .. {:.2f})  {:.1f} tokens/s  {:.1f} GB/s of {:.1f} read: "
      "share {:.0f} %  "
      "(weights {:.0f} MB, KV {:.0f} MB, state {:.0f} MB)\n",
      context, token_seconds * 1e3, seconds.front() * 1e3, seconds.back() * 1e3, 1 / token_seconds, rate,
      bandwidth, 100 * rate / bandwidth, weights * 1e-6, kv * 1e-6, state * 1e-6);
  fmt::print("  its prompt, once: first token after {:.2f} s\n", seconds_between(submitted, times.front()));
  std::fflush(stdout);
}

// `others`: bytes that this program holds besides.
void report_memory(const engine::Engine& engine, size_t others) {
  const double resident = static_cast<double>(engine::peak_resident_bytes() - others);
  const double planned = static_cast<double>(engine.info().weight_bytes + engine.info().cache_bytes);
  fmt::print("peak resident {} = weights + KV + state {} + {:.1f} % of the weights\n",
             format_bytes(static_cast<size_t>(resident)), format_bytes(static_cast<size_t>(planned)),
             100 * (resident - planned) / static_cast<double>(engine.info().weight_bytes));
}

std::vector<int64_t> parse_list(const char* text) {
  std::vector<int64_t> values;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end)
    values.push_back(std::strtoll(text, &end, 10));
  return values;
}

int bench_main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(
        stderr,
        "usage: longspan_engine_bench CONFIG_JSON [prefill tokens] [decode contexts] [tokens of a step]\n");
    return 2;
  }
  const int64_t num_prefill = argc > 2 ? std::atoll(argv[2]) : 4096;
  const std::vector<int64_t> contexts = parse_list(argc > 3 ? argv[3] : "4096,32768");
  const int64_t longest =
      std::max(num_prefill, contexts.empty() ? 0 : *std::max_element(contexts.begin(), contexts.end()));
  const engine::EngineOptions options{.model = argv[1],
                                      .random_seed = 1,
                                      .max_model_len = longest + kDecodeRounds * kDecoded + 1,
                                      .max_num_seqs = 1,
                                      .max_num_batched_tokens = argc > 4 ? std::atoll(argv[4]) : 4096};
  engine::Engine engine(options);
  for (const std::string& line : engine::describe(engine.info(), options)) fmt::print("{}\n", line);
  std::fflush(stdout);
  if (num_prefill > 0) bench_prefill(engine, num_prefill);
  ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
  const Buffer memory(size_t{1} << 30);
  std::memset(memory.data(), 1, memory.size_bytes());  // untouched pages are all one page of zeros
  for (int64_t context : contexts) bench_decode(engine, pool, memory, context);
  report_memory(engine, memory.size_bytes());
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) { return longspan::bench::bench_main(argc, argv); }
