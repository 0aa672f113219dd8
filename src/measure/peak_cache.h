// Peaks: what this machine can do at most, measured once and kept in a file per processor model, number of
// threads and version of the program.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/dtype.h"

namespace longspan::measure {

struct Peaks {
  std::string cpu_model;
  int threads = 0;
  std::string version;       // of the program
  double read_gbytes = 0;    // GB/s, all threads, beyond every cache
  double copy_gbytes = 0;    // GB/s, read and written bytes together
  double amx_gflops = 0;     // bf16 products of tiles, all threads; 0 without AMX
  double float_gflops = 0;   // fp32 multiply-adds, all threads
  int64_t unix_seconds = 0;  // when it was measured
  double processor_share =
      1;  // of its threads' time that this process got: others lower the memory's figures

  bool quiet() const { return processor_share >= kQuietShare; }
  static constexpr double kQuietShare = 0.9;

  // The limit of products in `dtype`, GFLOP/s: AMX for bf16 where there is one, else fp32's, which every
  // other product is computed in.
  double matrix_gflops(DType dtype) const {
    return dtype == DType::kBF16 && amx_gflops > 0 ? amx_gflops : float_gflops;
  }
};

// Takes `seconds` for each of four figures, the best of many passes each; half a second is steady. One
// thread's product rate counts `threads` times: the neighbours' share of the machine does not lower a limit.
inline constexpr size_t kPeakBytes = size_t{640} << 20;  // beyond any cache's reach
Peaks measure_peaks(int threads, double seconds, size_t memory_bytes = kPeakBytes);

// Of this machine, from $XDG_CACHE_HOME/longspan or ~/.cache/longspan; none where nothing was measured yet.
std::optional<Peaks> cached_peaks(int threads);
std::filesystem::path store_peaks(const Peaks& peaks);  // its file; throws kEnvironment

nlohmann::ordered_json to_json(const Peaks& peaks);
std::optional<Peaks> peaks_from_json(const nlohmann::ordered_json& json);  // none for what is none

int usable_threads();  // that this process may run on: what 0 threads means everywhere

}  // namespace longspan::measure
