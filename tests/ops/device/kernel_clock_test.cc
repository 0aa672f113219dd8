// Kernel times through roctracer: what becomes of its records, and what stands in its way. A fake library
// serves.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "core/error.h"
#include "ops/device/roctracer.h"

namespace longspan::ops::device {
namespace {

using Kind = KernelEvent::Kind;

constexpr uint64_t kTheirClockIsAhead = 5'000'000'000;

uint64_t steady_now() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

class RoctracerClock : public ::testing::Test {
 protected:
  RoctracerClock() { ::unsetenv("FAKE_ROCTRACER"); }
  ~RoctracerClock() override {
    ::unsetenv("FAKE_ROCTRACER");
    EXPECT_TRUE(function<bool()>("fake_is_clean")());
  }

  template <class Fn>
  static Fn* function(const char* name) {
    void* const library = ::dlopen(FAKE_ROCTRACER, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Fn*>(::dlsym(library, name));
  }
  static void launch(const char* name, std::vector<const char*> kernels, uint64_t begin_ns, uint64_t end_ns) {
    function<void(const char*, const char* const*, int, uint64_t, uint64_t)>("fake_launch")(
        name, kernels.data(), static_cast<int>(kernels.size()), begin_ns + kTheirClockIsAhead,
        end_ns + kTheirClockIsAhead);
  }

  static std::string refusal(std::string_view names) {
    try {
      (void)roctracer::start_clock(names);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
      return error.what();
    }
    return "";
  }
};

std::vector<KernelEvent> of_kind(const KernelEvents& all, Kind kind) {
  std::vector<KernelEvent> out;
  std::copy_if(all.events.begin(), all.events.end(), std::back_inserter(out),
               [&](const KernelEvent& event) { return event.kind == kind; });
  return out;
}

TEST_F(RoctracerClock, KernelsAndCopiesBelongToTheCallThatAskedForThem) {
  const auto clock = roctracer::start_clock(FAKE_ROCTRACER);
  const uint64_t now = steady_now();
  clock->open(7);
  launch("hipLaunchKernel", {"gemv", "gemv", "norm"}, now, now + 1000);
  launch("hipMemcpyAsync", {""}, now + 2000, now + 2500);
  clock->close();
  clock->open(8);
  launch("hipLaunchKernel", {"norm", "unnamed"}, now + 3000, now + 4000);
  clock->close();
  launch("hipLaunchKernel", {"norm"}, now + 5000, now + 6000);  // of nobody's call

  const KernelEvents all = clock->take();
  EXPECT_EQ(all.num_lost, 0);
  EXPECT_EQ(all.names, (std::vector<std::string>{"gemv", "norm", "?"}));
  const auto calls = of_kind(all, Kind::kCall), kernels = of_kind(all, Kind::kKernel),
             copies = of_kind(all, Kind::kCopy);
  ASSERT_EQ(calls.size(), 3u);  // one for each function of the runtime that a call of ours was around
  ASSERT_EQ(kernels.size(), 6u);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(calls[0].value, 7u);
  EXPECT_EQ(calls[1].value, 7u);
  EXPECT_EQ(calls[2].value, 8u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(kernels[i].ticket, calls[0].ticket);
  EXPECT_EQ(copies[0].ticket, calls[1].ticket);
  for (size_t i = 3; i < 5; ++i) EXPECT_EQ(kernels[i].ticket, calls[2].ticket);
  for (const KernelEvent& call : calls) EXPECT_NE(kernels[5].ticket, call.ticket);
  EXPECT_EQ(kernels[0].value, kernels[1].value);
  EXPECT_EQ(kernels[2].value, kernels[3].value);
  EXPECT_EQ(all.names[kernels[4].value], "?");

  // Times are the steady clock's, as well as two clocks can be read together.
  EXPECT_NEAR(static_cast<double>(kernels[0].begin_ns), static_cast<double>(now), 1e6);
  EXPECT_EQ(kernels[0].end_ns - kernels[0].begin_ns, 1000);
  EXPECT_EQ(copies[0].begin_ns - kernels[0].begin_ns, 2000);
}

TEST_F(RoctracerClock, NamesAreToldOnceAndAStopKeepsWhatCameBefore) {
  const auto clock = roctracer::start_clock(FAKE_ROCTRACER);
  launch("hipLaunchKernel", {"gemv"}, 1000, 2000);
  EXPECT_EQ(clock->take().names, std::vector<std::string>{"gemv"});
  launch("hipLaunchKernel", {"norm", "gemv"}, 3000, 4000);
  clock->stop();
  launch("hipLaunchKernel", {"late"}, 5000, 6000);
  const KernelEvents rest = clock->take();
  EXPECT_EQ(rest.names, std::vector<std::string>{"norm"});
  ASSERT_EQ(rest.events.size(), 2u);
  EXPECT_EQ(rest.events[0].value, 1u);
  EXPECT_EQ(rest.events[1].value, 0u);
  clock->stop();
  EXPECT_TRUE(clock->take().events.empty());
}

TEST_F(RoctracerClock, RecordsWithoutTimesAreNoKernels) {
  const auto clock = roctracer::start_clock(FAKE_ROCTRACER);
  launch("hipLaunchKernel", {"gemv"}, -kTheirClockIsAhead, 1000);  // begins at 0 of theirs
  launch("hipLaunchKernel", {"gemv"}, 2000, 1000);
  EXPECT_TRUE(clock->take().events.empty());
}

TEST_F(RoctracerClock, OneRunsAtATime) {
  {
    const auto clock = roctracer::start_clock(FAKE_ROCTRACER);
    EXPECT_EQ(refusal(FAKE_ROCTRACER), "another kernel clock runs");
    launch("hipLaunchKernel", {"gemv"}, 1000, 2000);
    EXPECT_EQ(clock->take().events.size(), 1u);  // the first one goes on
  }
  EXPECT_EQ(refusal(FAKE_ROCTRACER), "");
}

TEST_F(RoctracerClock, SaysWhatStandsInItsWay) {
  EXPECT_EQ(
      refusal("libroctracer-of-nobody.so /nowhere/libroctracer64.so"),
      "found none of libroctracer-of-nobody.so /nowhere/libroctracer64.so: install roctracer, or put its "
      "folder into LD_LIBRARY_PATH");
  EXPECT_EQ(refusal(FAKE_ROCTRACER_WITHOUT_POP),
            std::string(FAKE_ROCTRACER_WITHOUT_POP) +
                " has no roctracer_activity_pop_external_correlation_id: need roctracer 4");
  ::setenv("FAKE_ROCTRACER", "version", 1);
  EXPECT_EQ(refusal(FAKE_ROCTRACER), std::string(FAKE_ROCTRACER) + ": got version 5 of roctracer, need 4");
  ::setenv("FAKE_ROCTRACER", "no-copies", 1);
  EXPECT_EQ(refusal(FAKE_ROCTRACER), "roctracer refuses (records of kernels): as asked");
  ::setenv("FAKE_ROCTRACER", "no-launches", 1);
  EXPECT_EQ(refusal(FAKE_ROCTRACER), "roctracer knows no function that launches a kernel");
  ::unsetenv("FAKE_ROCTRACER");
  EXPECT_EQ(refusal(FAKE_ROCTRACER), "");  // each left nothing behind
}

}  // namespace
}  // namespace longspan::ops::device
