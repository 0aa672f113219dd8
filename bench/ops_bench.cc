// Matrix products of the CPU backend on the shapes of Qwen3.5-0.8B, against what the machine can do:
//   longspan_ops_bench [seconds a case]
// Weights rotate through copies that exceed the caches, as a decode step's do. Best of many runs: on a shared
// machine the others measure the neighbours.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "measure/peaks.h"
#include "ops/cpu/backend.h"
#include "ops/cpu/gemm_kernels.h"
#include "yardstick.h"

namespace longspan::bench {
namespace {

struct Layer {
  const char* name;
  Index n;
  Index k;
};

constexpr Layer kLayers[] = {{"gdn in", 8224, 1024},       {"gdn out", 1024, 2048},
                             {"gate up", 7168, 1024},      {"down", 1024, 3584},
                             {"attention in", 5120, 1024}, {"attention out", 1024, 2048},
                             {"head", 248320, 1024}};
constexpr Index kRowCounts[] = {1, 4, 16, 64, 512, 4096};
constexpr size_t kCacheBytes = size_t{640} << 20;  // beyond any cache's reach
constexpr Index kHeadRows = 16;                    // logits are wanted for few rows

struct Limits {
  double amx_gflops;    // all threads
  double float_gflops;  // all threads
  double gbytes;        // a second, all threads
};

struct Timing {
  double best_seconds;
  double median_seconds;
};

// Runs fn(0), fn(1), ... for `seconds`, three times at least.
template <class Fn>
Timing measure(double seconds, const Fn& fn) {
  std::vector<double> times;
  const double end = measure::now_seconds() + seconds;
  for (size_t i = 0; i < 3 || measure::now_seconds() < end; ++i) {
    const double start = measure::now_seconds();
    fn(i);
    times.push_back(measure::now_seconds() - start);
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

Buffer random_matrix(Index rows, Index cols) {
  Buffer matrix(DType::kBF16, {rows, cols});
  auto* values = matrix.view().as<bf16>();
  uint32_t state = 1;
  for (Index i = 0; i < rows * cols; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = bf16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
  }
  return matrix;
}

void print_row(const Layer& layer, Index m, const Timing& ours, double yardstick, const Limits& limits) {
  const double flops = 2.0 * static_cast<double>(m * layer.n * layer.k);
  const double bytes = 2.0 * static_cast<double>(m * layer.k + layer.n * layer.k + m * layer.n);
  const double gflops = flops / ours.best_seconds / 1e9;
  const double gbytes = bytes / ours.best_seconds / 1e9;
  const double peak = limits.amx_gflops > 0 ? limits.amx_gflops : limits.float_gflops;
  fmt::print("{:14} {:6} {:5} {:5} {:10.1f} {:10.1f} {:8.0f} {:5.0f} % {:7.1f} {:5.0f} %", layer.name,
             layer.n, layer.k, m, ours.best_seconds * 1e6, ours.median_seconds * 1e6, gflops,
             100 * gflops / peak, gbytes, 100 * gbytes / limits.gbytes);
  if (yardstick > 0) fmt::print(" {:10.1f} {:6.2f}x", yardstick * 1e6, yardstick / ours.best_seconds);
  fmt::print("\n");
  std::fflush(stdout);
}

void bench_layer(ops::Backend& backend, const Layer& layer, double seconds, const Limits& limits) {
  const Buffer source = random_matrix(layer.n, layer.k);
  const TensorView part = source.view();
  const size_t copies = std::max<size_t>(1, kCacheBytes / source.size_bytes());
  std::vector<std::unique_ptr<ops::Weight>> weights;
  for (size_t i = 0; i < copies; ++i) weights.push_back(backend.pack({&part, 1}, DType::kBF16));
  for (const Index m : kRowCounts) {
    if (layer.n > 100000 && m > kHeadRows) break;
    const Buffer x = random_matrix(m, layer.k);
    const Buffer out(DType::kBF16, {m, layer.n});
    const Timing ours = measure(seconds, [&](size_t i) {
      backend.matmul({.x = x.view(), .weight = weights[i % copies].get(), .out = out.view()});
    });
    const double yardstick = yardstick_seconds(m, layer.n, layer.k, copies, seconds);
    print_row(layer, m, ours, yardstick, limits);
  }
}

Limits find_limits(int num_threads, double seconds) {
  ThreadPool pool(num_threads);
  Buffer memory(kCacheBytes);
  std::memset(memory.data(), 1, memory.size_bytes());
  return {.amx_gflops = measure::best_of(seconds, [&] { return measure::amx_gflops(pool); }),
          .float_gflops = measure::best_of(seconds, [&] { return measure::float_gflops(pool); }),
          .gbytes = measure::best_of(seconds, [&] { return measure::read_gbytes(pool, memory); })};
}

int run(double seconds) {
  const int num_threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::unique_ptr<ops::Backend> backend = ops::cpu::make_backend({.num_threads = num_threads});
  const Limits limits = find_limits(num_threads, seconds);
  fmt::print(
      "{}\npeak of {} threads at once: AMX bf16 {:.0f} GFLOP/s, fp32 {:.0f} GFLOP/s; read {:.1f} GB/s\n",
      backend->name(), num_threads, limits.amx_gflops, limits.float_gflops, limits.gbytes);
  fmt::print("{:14} {:>6} {:>5} {:>5} {:>10} {:>10} {:>8} {:>7} {:>7} {:>7} {:>10} {:>7}\n", "layer", "N",
             "K", "M", "best us", "median us", "GFLOP/s", "peak", "GB/s", "read", "oneDNN us", "ratio");
  for (const Layer& layer : kLayers) bench_layer(*backend, layer, seconds, limits);
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) { return longspan::bench::run(argc > 1 ? std::atof(argv[1]) : 0.5); }
