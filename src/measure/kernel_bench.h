// Operations one by one, as `bench kernel` runs them: on memory that no cache holds, median of many runs,
// against the machine's limits; and A/B/A where two ways do the same. A kernel's figure is no service's: the
// result says "kernel", and nothing compares it with another kind.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "measure/kernel_cases.h"
#include "measure/kernel_times.h"
#include "measure/peak_cache.h"

namespace longspan::measure {

struct KernelBenchOptions {
  std::string op;  // only these; empty: all
  KernelShapes shapes;
  std::vector<ProductShape> products;  // empty: those of the shapes
  std::vector<Index> rows = {1, 16, 512, 4096};
  std::vector<Index> contexts = {4096, 32768};  // KV lengths of attention
  int64_t min_runs = 30;
  double limit_seconds = 5;  // of one case, or one side of a pair; then fewer runs must do
  int max_tries = 3;         // of a pair whose A's differ
  size_t cold_bytes = 0;     // 0: twice the last cache, 64 MiB at least and 1 GiB at most; a card's 256 MiB
  double run_seconds = 0;    // as TimingOptions has it
};

struct KernelFigure {
  KernelCase what;  // its run is gone
  KernelTimes times;
};

struct PairFigure {
  KernelFigure a_before, b, a_after;
  int tries = 1;
  std::optional<bool> same_bits;  // where outputs were compared

  double drift_percent() const;  // of the A's
  bool is_void() const;          // the A's differ by more than kMaxDriftPercent
  double ratio() const;          // the faster A over B
};
inline constexpr double kMaxDriftPercent = 1;

struct KernelResults {
  std::string device;
  KernelBenchOptions options;  // as they were in effect
  std::optional<Peaks> peaks;
  std::vector<KernelFigure> figures;
  std::vector<PairFigure> pairs;
};

PairFigure time_pair(const KernelPair& pair, const KernelBenchOptions& options,
                     const std::function<void()>& wait);
// On a device many calls are in front of one wait. `tell` hears each line as it is known.
KernelResults bench_kernels(ops::Ops& ops, const KernelBenchOptions& asked, std::optional<Peaks> peaks,
                            const std::function<void(const std::string&)>& tell);

std::string kernel_header();
std::string kernel_line(const KernelFigure& figure, const std::optional<Peaks>& peaks);
std::string pair_line(const PairFigure& pair);
nlohmann::ordered_json to_json(const KernelResults& results);  // {kind: "kernel", ...}

size_t last_cache_bytes();  // 0: not known

}  // namespace longspan::measure
