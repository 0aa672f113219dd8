// TraceFile: a trace as chrome://tracing and Perfetto read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "engine/step_trace.h"
#include "measure/profile_totals.h"

namespace longspan::measure {

inline constexpr const char* kTraceFile = "trace.json";
inline constexpr int64_t kMaxTraceLines = 2'000'000;  // viewers take no more; the events stay in events.bin

class TraceFile final {
 public:
  explicit TraceFile(const std::filesystem::path& path);  // throws kEnvironment
  void add(const engine::TraceEvent& event);
  // What the device did; `operation` asked for it, or nobody (null).
  void add_span(const KernelSpan& span, const std::string& name, const KernelTotal* operation);
  void finish();  // throws kEnvironment when the disk refused

  int64_t num_written() const { return num_written_; }

 private:
  std::filesystem::path path_;
  std::ofstream out_;
  std::string line_;
  int64_t first_ns_ = -1;
  int64_t num_written_ = 0;
};

}  // namespace longspan::measure
