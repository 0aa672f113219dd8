// What preparing a step's inputs costs while one sequence decodes: the general way against the steady one,
// A/B/A, after both gave the same integers at every step. On a device a step ends when the arrays are there:
// the general way copies them, the steady one has a kernel write them. No model is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cache/page_plan.h"

namespace longspan::measure {

struct InputPrepOptions {
  int64_t position = 24576;  // of the first decode step; tokens
  int64_t num_steps = 2000;  // decode steps of a round
  int64_t num_warm_up = 100;
  int64_t num_rounds = 15;                       // the median of them counts
  cache::Layout layout = cache::Layout::kSplit;  // split: two groups, K/V and states; unified: four
  std::optional<int> device_index;               // of ops::device; none: host work only
};

struct InputPrepResult {
  int64_t num_compared = 0;       // steps whose arrays were compared, all equal
  std::string difference;         // the first one; else empty, and only then the rest is filled in
  int32_t num_groups = 0;         // of layers, each with a table
  int64_t num_dispatched = 0;     // steps of the timed rounds that took the steady way
  int64_t num_advanced = 0;       // of them: written by the device
  int64_t num_table_uploads = 0;  // in those: copies of a table that had grown
  std::string device;             // empty: the host
  double general_before_ns = 0;   // A: of one step
  double steady_ns = 0;           // B
  double general_after_ns = 0;    // A again: how far the machine drifted

  double baseline_ns() const {
    return general_before_ns < general_after_ns ? general_before_ns : general_after_ns;
  }
  double saved_ns() const { return baseline_ns() - steady_ns; }
  double speed_up() const { return baseline_ns() / steady_ns; }
  double drift_percent() const { return 100 * (general_after_ns / general_before_ns - 1); }
};

// Throws kInvalid on numbers that cannot be.
InputPrepResult measure_input_prep(const InputPrepOptions& options);

}  // namespace longspan::measure
