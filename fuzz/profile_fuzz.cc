// Any bytes as the events of a profile: refused, or summed up without a number that is none.
#include <cmath>
#include <cstdint>
#include <sstream>

#include "core/error.h"
#include "measure/profile_file.h"
#include "measure/profile_totals.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  longspan::measure::ProfileTotals totals;
  std::istringstream file(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const int64_t count = longspan::measure::read_events(
        file, "fuzz", [&](const longspan::engine::TraceEvent& event) { totals.add(event); });
    CHECK(count == totals.num_events &&
          static_cast<size_t>(count) * sizeof(longspan::engine::TraceEvent) <= size);
    CHECK(totals.num_steps >= 0 && totals.prompt_tokens >= 0);
    for (const auto& kernel : totals.kernels()) CHECK(!kernel.name.empty() && kernel.work.ns >= 0);
  } catch (const longspan::Error&) {  // refused
  }
  return 0;
}
