// The limits of a card: its memory by a plain reader and the runtime's copy, its matrix units by the products
// of the backend.
#include "core/units.h"
#include "measure/environment.h"
#include "measure/kernel_memory.h"
#include "measure/kernel_times.h"
#include "measure/peak_cache.h"
#include "ops/device/backend.h"

namespace longspan::measure {
namespace {

constexpr int64_t kPeakRuns = 10;  // at least

// Microseconds of the fastest run.
double fastest_us(ops::Backend& backend, double seconds, const std::function<void(Index)>& call) {
  return time_calls(call, [&] { backend.synchronize(); },
                    {.min_runs = kPeakRuns, .limit_seconds = seconds, .run_seconds = kDeviceRunSeconds})
      .best();
}

// Random numbers: on zeros a card draws less power, and is faster than on anything else.
std::unique_ptr<ops::Weight> square_weight(ops::Backend& backend, DType dtype, Index n) {
  const ops::RandomRows rows{1, n};
  return backend.pack_random({&rows, 1}, n, dtype, dtype, 0.02f);
}

double product_gflops(ops::Backend& backend, DType dtype, const DevicePeakOptions& options) {
  const Index n = options.n;
  const std::unique_ptr<ops::Weight> weight = square_weight(backend, dtype, n);
  const Buffer x = moved_to(backend, random_matrix(dtype, {n, n}));
  const Buffer out = backend.allocate(dtype, {n, n});
  const double us = fastest_us(backend, options.seconds, [&](Index) {
    backend.matmul({.x = x.view(), .num_decode_rows = 0, .weight = weight.get(), .out = out.view()});
  });
  return 2.0 * static_cast<double>(n * n * n) / us * 1e-3;
}

}  // namespace

Peaks measure_device_peaks(ops::Backend& backend, const DevicePeakOptions& options) {
  const size_t bytes = options.memory_bytes / 32 * 32;
  Peaks peaks{
      .of = {.machine = backend.name()}, .version = program_version(), .unix_seconds = now_unix_seconds()};
  {
    const Buffer memory = backend.allocate(DType::kU8, {static_cast<Index>(bytes)});
    backend.zero(memory.data(), bytes);
    const double gbytes_us = static_cast<double>(bytes) * 1e-3;
    peaks.read_gbytes = gbytes_us / fastest_us(backend, options.seconds, [&](Index) {
                          ops::device::read_memory(backend, memory.view());
                        });
    auto* const data = static_cast<char*>(memory.data());
    peaks.copy_gbytes = gbytes_us / fastest_us(backend, options.seconds, [&](Index) {
                          backend.copy(data + bytes / 2, data, bytes / 2);
                        });
  }
  peaks.bf16_gflops = product_gflops(backend, DType::kBF16, options);
  peaks.fp16_gflops = product_gflops(backend, DType::kF16, options);
  peaks.fp32_gflops = product_gflops(backend, DType::kF32, options);
  return peaks;
}

}  // namespace longspan::measure
