// Peaks: what this machine, or a device in it, can do at most, measured once and kept in a file per processor
// model and number of threads, or per device, and version of the program.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "ops/ops.h"

namespace longspan::measure {

// What was measured. A processor model and threads on it; or a device, by its backend's name, and threads 0.
struct PeakKey {
  std::string machine;
  int threads = 0;

  bool on_device() const { return threads == 0; }
  bool operator==(const PeakKey&) const = default;
};
PeakKey this_machine(int threads);

struct Peaks {
  PeakKey of;
  std::string version;       // of the program
  double read_gbytes = 0;    // GB/s, all threads, beyond every cache
  double copy_gbytes = 0;    // GB/s, read and written bytes together
  double bf16_gflops = 0;    // products; 0 where none are computed in that type
  double fp16_gflops = 0;    // likewise
  double fp32_gflops = 0;    // multiply-adds, or products
  int64_t unix_seconds = 0;  // when it was measured
  // Of its threads' time that this process got: others lower the figures. On a device 1.
  double processor_share = 1;

  bool quiet() const { return processor_share >= kQuietShare; }
  static constexpr double kQuietShare = 0.9;

  // The limit of products in `dtype`, GFLOP/s; what has no unit of its own is computed in fp32.
  double matrix_gflops(DType dtype) const {
    const double own = dtype == DType::kBF16 ? bf16_gflops : dtype == DType::kF16 ? fp16_gflops : 0;
    return own > 0 ? own : fp32_gflops;
  }
};

// Takes `seconds` for each of four figures, the best of many passes each; half a second is steady. All
// threads at once: what one gets alone is no limit of what all get.
inline constexpr size_t kPeakBytes = size_t{640} << 20;  // beyond any cache's reach
Peaks measure_peaks(int threads, double seconds, size_t memory_bytes = kPeakBytes);

// The same of a device; `backend` is of ops::device::make_backend(). Products are the backend's own, n x n x
// n in each dtype: the vendor's library where the build has one.
struct DevicePeakOptions {
  double seconds = 0.5;
  size_t memory_bytes = size_t{4} << 30;
  Index n = 8192;
};
Peaks measure_device_peaks(ops::Backend& backend, const DevicePeakOptions& options = {});

// From $XDG_CACHE_HOME/longspan or ~/.cache/longspan; none where nothing was measured yet.
std::optional<Peaks> cached_peaks(const PeakKey& of);
std::filesystem::path store_peaks(const Peaks& peaks);  // its file; throws kEnvironment

nlohmann::ordered_json to_json(const Peaks& peaks);
std::optional<Peaks> peaks_from_json(const nlohmann::ordered_json& json);  // none for what is none

}  // namespace longspan::measure
