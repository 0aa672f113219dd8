// What a device did, told apart by operations: on events written by hand, as a kernel clock gives them.
#include "measure/kernel_spans.h"

#include <gtest/gtest.h>

#include "measure/kernel_name.h"

namespace longspan::measure {
namespace {

using ops::device::KernelEvent;

KernelEvent kernel(uint32_t ticket, int64_t begin_ns, int64_t end_ns, uint32_t name = 0) {
  return {.begin_ns = begin_ns, .end_ns = end_ns, .ticket = ticket, .value = name};
}
KernelEvent call(uint32_t ticket, uint32_t number) {
  return {.ticket = ticket, .value = number, .kind = KernelEvent::Kind::kCall};
}

std::vector<uint32_t> calls_of(const KernelSpans& spans) {
  std::vector<uint32_t> calls;
  for (const KernelSpan& span : spans.spans) calls.push_back(span.call);
  return calls;
}

TEST(KernelSpans, KernelsBelongToTheCallOfTheirTicket) {
  // Two launches of call 1, one of call 2, one of nobody's; the calls come behind their kernels.
  const KernelSpans spans = spans_of({kernel(12, 40, 50), kernel(10, 10, 20), kernel(11, 20, 30),
                                      kernel(99, 60, 70), call(10, 1), call(12, 2), call(11, 1)},
                                     {}, 0, 100);
  EXPECT_EQ(calls_of(spans), (std::vector<uint32_t>{1, 1, 2, 0}));
  EXPECT_EQ(spans.num_unmatched_replays, 0);
}

TEST(KernelSpans, AReplayIsHandedOutInOrder) {
  const std::vector<ReplayedCalls> replays = {{.first_call = 5, .num_launches = {1, 0, 2}},
                                              {.first_call = 8, .num_launches = {1, 1}}};
  const KernelSpans spans = spans_of({call(1, 5), kernel(1, 20, 30), kernel(1, 10, 20), kernel(1, 30, 40),
                                      call(2, 8), kernel(2, 50, 60), kernel(2, 60, 70)},
                                     replays, 0, 100);
  EXPECT_EQ(calls_of(spans), (std::vector<uint32_t>{5, 7, 7, 8, 9}));
}

TEST(KernelSpans, AReplayOfOtherThanWasRecordedIsNobodys) {
  const std::vector<ReplayedCalls> replays = {{.first_call = 5, .num_launches = {1, 1}},
                                              {.first_call = 7, .num_launches = {1}}};
  const KernelSpans spans =
      spans_of({call(1, 5), kernel(1, 10, 20), call(2, 7), kernel(2, 30, 40)}, replays, 0, 100);
  EXPECT_EQ(calls_of(spans), (std::vector<uint32_t>{0, 7}));
  EXPECT_EQ(spans.num_unmatched_replays, 1);
}

TEST(KernelSpans, EachNanosecondCountsOnceAndInsideTheWindow) {
  // One begins before the window, one while its neighbour runs, one inside another, one after the end.
  const KernelSpans spans = spans_of({kernel(1, 90, 120), kernel(2, 110, 150), kernel(3, 115, 130),
                                      kernel(4, 190, 230), kernel(5, 300, 310)},
                                     {}, 100, 200);
  ASSERT_EQ(spans.spans.size(), 4u);
  int64_t total_ns = 0, last_ns = 100;
  for (const KernelSpan& span : spans.spans) {
    EXPECT_GE(span.begin_ns, last_ns);
    EXPECT_LE(span.end_ns, 200);
    last_ns = span.end_ns;
    total_ns += span.end_ns - span.begin_ns;
  }
  EXPECT_EQ(total_ns, 20 + 30 + 0 + 10);
}

TEST(KernelName, SaysTheKernelNotItsWrapper) {
  EXPECT_EQ(kernel_name("gemv"), "gemv");
  EXPECT_EQ(
      kernel_name("_ZN8longspan3ops6device10run_kernelINS1_12_GLOBAL__N_110NormKernelINS1_6bf16_tEEEEEvT_"),
      "NormKernel<bf16_t>");
  EXPECT_EQ(kernel_name("_Z4plusii"), "plus(int, int)");
}

}  // namespace
}  // namespace longspan::measure
