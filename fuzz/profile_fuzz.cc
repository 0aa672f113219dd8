// Any bytes as the events of a profile, or of its device: refused, or summed up without a number that is
// none.
#include <cmath>
#include <cstdint>
#include <sstream>

#include "core/error.h"
#include "measure/kernel_spans.h"
#include "measure/profile_file.h"
#include "measure/profile_totals.h"

namespace longspan::measure {
namespace {

void read_engine(std::istream& file, size_t size, OpTiming timing) {
  ProfileTotals totals(timing);
  const int64_t count =
      read_events(file, "fuzz", [&](const engine::TraceEvent& event) { totals.add(event); });
  CHECK(count == totals.num_events && static_cast<size_t>(count) * sizeof(engine::TraceEvent) <= size);
  CHECK(totals.num_steps >= 0 && totals.prompt_tokens >= 0);
  if (timing == OpTiming::kKernels) totals.add_kernels({{.begin_ns = 1, .end_ns = 9, .ticket = 1}}, {});
  CHECK(totals.idle_ns() >= 0);
  for (const auto& kernel : totals.kernels()) CHECK(!kernel.name.empty() && kernel.work.ns >= 0);
}

void read_device(std::istream& file) {
  constexpr int64_t kBegin = 1000, kEnd = 1'000'000;
  const ReplayedCalls replays[] = {{.first_call = 1, .num_launches = {1, 1}}};
  int64_t last_ns = kBegin;
  for (const KernelSpan& span : spans_of(read_device_events(file, "fuzz"), replays, kBegin, kEnd).spans) {
    CHECK(span.begin_ns >= last_ns && span.end_ns >= span.begin_ns && span.end_ns <= kEnd);
    last_ns = span.end_ns;
  }
}

}  // namespace
}  // namespace longspan::measure

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan::measure;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto attempt = [&](const auto& read) {
    std::istringstream file(bytes);
    try {
      read(file);
    } catch (const longspan::Error&) {  // refused
    }
  };
  attempt([&](std::istream& file) { read_engine(file, size, OpTiming::kCalls); });
  attempt([&](std::istream& file) { read_engine(file, size, OpTiming::kKernels); });
  attempt([&](std::istream& file) { read_device(file); });
  return 0;
}
