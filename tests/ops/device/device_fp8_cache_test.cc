// An FP8 cache on a device: every kernel reads codes as it would read the values they stand for, on matrix
// units and without, by arithmetic (waves of 32) and by a table in shared memory (waves of 64).
#include "device/devices.h"
#include "fp8_cache_case.h"

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
