// An FP8 cache on a device: every kernel reads codes as it would read the values they stand for, on matrix
// units and without, by arithmetic (waves of 32) and by a table in shared memory (waves of 64).
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "device/devices.h"
#include "fp8_cache_case.h"
#include "ops/device/kernel_clock.h"

namespace longspan::ops::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

void expect_device_as_decoded(const Problem& problem) {
  for (StagedBackend* device : devices())
    expect_as_decoded(*device, reference(), problem, problem.dtype == DType::kF32 ? 1e-5 : 4e-3);
}

TEST(DeviceFp8Cache, ReadsAsDecodedForEveryHeadDimAndGroup) {
  for (const DType dtype : kDTypes)
    for (const auto& [group, head_dim] :
         {std::pair<Index, Index>{1, 1}, {2, 20}, {6, 64}, {9, 80}, {2, 128}, {1, 256}})
      if (dtype != DType::kF16 || head_dim == 64)  // otherwise as bfloat16
        expect_device_as_decoded({.dtype = dtype,
                                  .num_q_heads = group,
                                  .num_kv_heads = 1,
                                  .head_dim = head_dim,
                                  .page_tokens = 48,
                                  .decode = {{1, 76, 77}},
                                  .prefill = {{2, 0, 5}, {3, 64, 71}},
                                  .scaled = head_dim != 20});
}

TEST(DeviceFp8Cache, ReadsAsDecodedForOddLengthsAndPages) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const auto& [page_tokens, length] :
         {std::pair<Index, Index>{16, 1}, {16, 257}, {64, 65}, {784, 785}, {832, 129}})
      for (const Index head_dim : {24, 64})
        expect_device_as_decoded({.dtype = dtype,
                                  .num_q_heads = 2,
                                  .num_kv_heads = 1,
                                  .head_dim = head_dim,
                                  .page_tokens = page_tokens,
                                  .decode = {{1, length - 1, length}},
                                  .prefill = {{2, std::max<Index>(0, length - 3), length}},
                                  .misalignment = head_dim == 24 ? length % 2 : 0});
}

TEST(DeviceFp8Cache, PathsPagesAndChunksChangeNoBit) {
  for (StagedBackend* device : devices())
    for (const Index head_dim : {40, 64}) {
      const Problem alone{.num_q_heads = 2,
                          .num_kv_heads = 1,
                          .head_dim = head_dim,
                          .decode = {{1, 599, 600}},
                          .prefill = {{2, 0, 75}}};
      const std::vector<float> expected = run_as(*device, alone, CacheForm::kCodes);
      for (const auto& [page_tokens, path] : {std::pair<Index, AttentionPath>{64, AttentionPath::kUnified},
                                              {64, AttentionPath::kPageContiguousDecode},
                                              {784, AttentionPath::kPageContiguousDecode},
                                              {832, AttentionPath::kPageContiguousDecode}}) {
        Problem problem = alone;
        problem.page_tokens = page_tokens;
        problem.table_seed = static_cast<unsigned>(page_tokens);
        problem.decode_path = path;
        EXPECT_EQ(run_as(*device, problem, CacheForm::kCodes), expected) << page_tokens;
      }
      std::vector<float> in_chunks;
      for (const auto& [begin, end] : {std::pair<Index, Index>{0, 64}, {64, 75}}) {
        Problem chunk = alone;
        chunk.decode.clear();
        chunk.prefill = {{2, begin, end}};
        const std::vector<float> part = run_as(*device, chunk, CacheForm::kCodes);
        in_chunks.insert(in_chunks.end(), part.begin(), part.end());
      }
      const auto row = static_cast<std::ptrdiff_t>(alone.num_q_heads * alone.head_dim);
      EXPECT_TRUE(std::equal(in_chunks.begin(), in_chunks.end(), expected.begin() + row));
    }
}

// Launches while `calls` runs whose name has one of the two parts: the launch's own, or its kernel's type.
// -1 where the machine does not tell: another tool watches the card.
Index num_launches(std::string_view launch, std::string_view kernel, const std::function<void()>& calls) {
  std::unique_ptr<device::KernelClock> clock;
  try {
    clock = device::start_kernel_clock();
  } catch (const Error& error) {
    EXPECT_FALSE(on_emulator()) << error.what();
  }
  calls();
  if (clock == nullptr) return -1;
  clock->stop();
  const device::KernelEvents taken = clock->take();
  return std::ranges::count_if(taken.events, [&](const device::KernelEvent& event) {
    if (event.kind != device::KernelEvent::Kind::kKernel) return false;
    const std::string& name = taken.names.at(event.value);
    return name.find(launch) != std::string::npos || name.find(kernel) != std::string::npos;
  });
}

// There is room for tables of four pages of 64 tokens.
TEST(DeviceFp8Cache, UnpackedOnceGivesTheBitsOfUnified) {
  struct Case {
    std::vector<Chunk> prefill;
    bool unpacks;
  };
  const Case cases[] = {{{{2, 0, 64}}, true},
                        {{{2, 0, 70}}, true},
                        {{{3, 64, 190}}, true},
                        {{{4, 60, 70}}, false},    // few rows
                        {{{5, 128, 193}}, false},  // a table of five pages
                        {{{2, 0, 70}, {3, 0, 70}}, false}};
  for (int index = 0; index < (on_emulator() ? 2 : 1); ++index)
    for (const auto& [dtype, head_dim] : {std::pair<DType, Index>{DType::kBF16, 64},
                                          {DType::kF16, 128},
                                          {DType::kBF16, 256},
                                          {DType::kF32, 32},
                                          {DType::kBF16, 40}}) {  // no whole words of codes
      const Index page_bytes = 2 * 64 * 2 * head_dim * static_cast<Index>(dtype_size(dtype));
      StagedBackend device(device::make_backend(
          index, {.unpacked_kv_bytes = static_cast<size_t>(device::unpacked_kv_bytes(4, page_bytes))}));
      for (const auto& [prefill, unpacks] : cases) {
        Problem problem{.dtype = dtype,
                        .num_q_heads = 4,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .page_tokens = 64,
                        .decode = {{1, 70, 71}},
                        .prefill = prefill};
        const std::vector<float> unified = run_as(device, problem, CacheForm::kCodes);
        problem.prefill_path = AttentionPath::kVendorPrefill;
        const auto run = [&] { EXPECT_EQ(run_as(device, problem, CacheForm::kCodes), unified); };
        SCOPED_TRACE(
            fmt::format("{} {} dim {} up to {}", device.name(), dtype_name(dtype), head_dim, prefill[0].end));
        const Index launches = num_launches("unpack_kv", "UnpackKvKernel", run);
        if (launches >= 0) EXPECT_EQ(launches, unpacks && head_dim % 16 == 0 ? 1 : 0);
      }
    }
}

TEST(DeviceFp8Cache, WritesTheScalarCodes) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const Index head_dim : {2, 20, 64, 256})
        expect_scalar_codes(*device, {.dtype = dtype, .head_dim = head_dim, .rotary_dim = 2});
}

// Field report 004: heads of 128 in groups of 8 gave NaN now and then, for a wave read the table of codes
// before it was whole.
TEST(DeviceFp8Cache, TheReportsCaseIsFiniteAndIdenticalFiftyTimes) {
  for (StagedBackend* device : devices()) {
    const Problem problem{.dtype = DType::kF16,
                          .num_q_heads = 8,
                          .num_kv_heads = 1,
                          .head_dim = 128,
                          .page_tokens = 64,
                          .decode = {{1, 24, 25}},
                          .prefill = {{2, 5, 6}}};
    std::vector<float> first;
    for (int round = 0; round < 50; ++round) {  // the emulator draws a schedule for each launch
      const std::vector<float> out = run_as(*device, problem, CacheForm::kCodes);
      if (first.empty()) first = out;
      ASSERT_EQ(out, first) << device->name() << " round " << round;
    }
    for (const float value : first) ASSERT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace longspan::ops::test
