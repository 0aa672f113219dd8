// Attention on a device: against the reference, and bit for bit against itself however a prompt is cut, paged
// and batched.
#include "device/devices.h"
#include "paged_attention.h"

namespace longspan::ops::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

// bf16: each gate step and each output is rounded to 8 bits.
double tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 4e-3; }

std::vector<float> on(Backend& backend, const Problem& problem) { return Step(problem).run(backend); }

void expect_like_reference(StagedBackend& device, const Problem& problem) {
  EXPECT_LT(relative_error(on(device, problem), on(reference(), problem)), tolerance(problem.dtype))
      << device.name() << " " << dtype_name(problem.dtype) << " heads " << problem.num_q_heads << "/"
      << problem.num_kv_heads << " dim " << problem.head_dim << " page " << problem.page_tokens;
}

TEST(DeviceAttention, MatchesReferenceForEveryHeadDim) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index head_dim : {1, 8, 20, 64, 80, 128, 256})
        expect_like_reference(*device, {.dtype = dtype,
                                        .num_q_heads = 2,
                                        .num_kv_heads = 1,
                                        .head_dim = head_dim,
                                        .decode = {{1, 76, 77}},
                                        .prefill = {{2, 0, 35}, {3, 64, 83}}});
}

TEST(DeviceAttention, MatchesReferenceForEveryGroupSize) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index group : {1, 2, 3, 6, 8, 9, 20})
        expect_like_reference(*device, {.dtype = dtype,
                                        .num_q_heads = 2 * group,
                                        .num_kv_heads = 2,
                                        .head_dim = 16,
                                        .decode = {{1, 130, 131}},
                                        .prefill = {{2, 0, 19}, {3, 64, 70}}});
}

TEST(DeviceAttention, MatchesReferenceForOddLengths) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index length : {1, 2, 16, 17, 63, 64, 65, 255, 257})
        expect_like_reference(*device, {.dtype = dtype,
                                        .num_q_heads = 3,
                                        .num_kv_heads = 1,
                                        .head_dim = 16,
                                        .decode = {{1, length - 1, length}},
                                        .prefill = {{2, 0, length}, {3, length - 1, length}}});
}

TEST(DeviceAttention, MatchesReferenceOverSeveralSegmentsAndPages) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      expect_like_reference(*device, {.dtype = dtype,
                                      .head_dim = 32,
                                      .page_tokens = 784,
                                      .decode = {{1, 2499, 2500}, {2, 511, 512}, {3, 4199, 4200}},
                                      .prefill = {{4, 1984, 2010}, {5, 768, 771}}});
}

TEST(DeviceAttention, MatchesReferenceWithoutGateAndMisaligned) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index misalignment : {0, 1, 3})
        expect_like_reference(*device, {.dtype = dtype,
                                        .head_dim = 72,
                                        .decode = {{1, 99, 100}},
                                        .prefill = {{2, 0, 50}},
                                        .gated = false,
                                        .misalignment = misalignment});
}

TEST(DeviceAttention, SurvivesLargeScores) {
  for (StagedBackend* device : devices()) {
    Problem problem{
        .dtype = DType::kF32, .decode = {{1, 299, 300}}, .prefill = {{2, 0, 40}}, .score_size = 300};
    EXPECT_LT(relative_error(on(*device, problem), on(reference(), problem)), 2e-4);
    problem.dtype = DType::kBF16;
    EXPECT_LT(relative_error(on(*device, problem), on(reference(), problem)), 1e-2);
  }
}

// Outputs of positions 0 .. length - 1 of sequence 1, computed in chunks that end at `ends`.
std::vector<float> in_chunks(Backend& backend, Problem problem, const std::vector<Index>& ends) {
  std::vector<float> all;
  Index begin = 0;
  for (const Index end : ends) {
    problem.prefill = {{1, begin, end}};
    const std::vector<float> part = on(backend, problem);
    all.insert(all.end(), part.begin(), part.end());
    begin = end;
  }
  return all;
}

TEST(DeviceAttention, ChunkingChangesNoBit) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes) {
      for (const Index head_dim : {32, 64}) {  // matrix units take 64
        const Problem problem{.dtype = dtype, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = head_dim};
        const std::vector<float> whole = in_chunks(*device, problem, {193});
        EXPECT_EQ(in_chunks(*device, problem, {64, 128, 192, 193}), whole);
        EXPECT_EQ(in_chunks(*device, problem, {37, 74, 111, 193}), whole);
      }
    }
}

TEST(DeviceAttention, PagesPathsAndBatchMatesChangeNoBit) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes) {
      const Problem alone{
          .dtype = dtype, .head_dim = 40, .decode = {{1, 1299, 1300}}, .prefill = {{2, 192, 260}}};
      const std::vector<float> expected = on(*device, alone);
      for (const Index page_tokens : {16, 64, 784, 832, 1024})
        for (const AttentionPath path : {AttentionPath::kUnified, AttentionPath::kPageContiguousDecode}) {
          Problem problem = alone;
          problem.page_tokens = page_tokens;
          problem.table_seed = static_cast<unsigned>(page_tokens);
          problem.decode_path = path;
          EXPECT_EQ(on(*device, problem), expected) << page_tokens;
        }
      Problem crowd = alone;
      crowd.decode = {{1, 1299, 1300}, {4, 10, 11}, {5, 600, 601}};
      crowd.prefill = {{2, 192, 260}, {6, 0, 33}};
      const std::vector<float> out = on(*device, crowd);
      const auto row = static_cast<std::ptrdiff_t>(alone.num_q_heads * alone.head_dim);
      EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + row, out.begin()));
      EXPECT_TRUE(std::equal(expected.begin() + row, expected.end(), out.begin() + 3 * row));
    }
}

// Heads that fill their eight columns, that leave some empty, that need two parts; segments of one tile and
// of several, the last one short; walks of whole pages and of single rows.
TEST(DeviceAttention, DecodesOnMatrixUnits) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kBF16, DType::kF16})
      for (const auto& [group, head_dim] : {std::pair<Index, Index>{6, 64}, {8, 128}, {9, 64}, {1, 256}}) {
        Problem problem{.dtype = dtype,
                        .num_q_heads = 4 * group,
                        .num_kv_heads = 4,
                        .head_dim = head_dim,
                        .page_tokens = 48,
                        .decode = {{1, 0, 1}, {2, 14, 15}, {3, 130, 131}, {4, 199, 200}}};
        expect_like_reference(*device, problem);
        const std::vector<float> expected = on(*device, problem);
        problem.decode_path = AttentionPath::kPageContiguousDecode;
        problem.page_tokens = 832;
        EXPECT_EQ(on(*device, problem), expected);
      }
  for (StagedBackend* device : devices()) {  // segments of 128: more than 64 of 64 tokens
    Problem problem{.num_q_heads = 24,
                    .num_kv_heads = 4,
                    .head_dim = 64,
                    .page_tokens = 832,
                    .decode = {{1, 4299, 4300}}};
    expect_like_reference(*device, problem);
  }
}

// However many parts a context is cut into, the sum is the same but for its order.
TEST(DeviceAttention, SegmentsAsManyAsAskedFor) {
  const Problem problem{
      .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64, .decode = {{1, 899, 900}, {2, 9, 10}}};
  for (int index = 0; index < (on_emulator() ? 2 : 1); ++index)
    for (const int segments : {1, 3, device::kMaxDecodeSegments}) {
      StagedBackend device(device::make_backend(index, {.decode_segments = segments}));
      expect_like_reference(device, problem);
    }
}

// Several key tiles, query tiles that begin and end anywhere, a context before them.
TEST(DeviceAttention, MatchesReferenceOnMatrixUnits) {
  for (StagedBackend* device : devices())
    for (const Index head_dim : {64, 128, 256})
      expect_like_reference(*device, {.num_q_heads = 2,
                                      .num_kv_heads = 1,
                                      .head_dim = head_dim,
                                      .page_tokens = 48,
                                      .prefill = {{2, 0, 5}, {3, 64, 201}, {4, 130, 131}}});
}

// The library of this machine, where it has one (LONGSPAN_PREFILL names one for the emulator).
TEST(DevicePrefillLibrary, MatchesReferenceAndChunkingChangesNoBit) {
  Problem problem{.num_q_heads = 6,
                  .num_kv_heads = 2,
                  .head_dim = 128,
                  .page_tokens = 192,
                  .prefill = {{2, 0, 5}, {3, 64, 264}, {4, 130, 131}},
                  .page_padding = 0,
                  .prefill_path = AttentionPath::kVendorPrefill};
  const std::string obstacle = device::choose_prefill_library(0, {.dtype = problem.dtype,
                                                                  .kv_dtype = problem.dtype,
                                                                  .head_dim = problem.head_dim,
                                                                  .page_tokens = problem.page_tokens,
                                                                  .num_q_heads = problem.num_q_heads,
                                                                  .num_kv_heads = problem.num_kv_heads})
                                   .obstacle;
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
  EXPECT_LT(relative_error(on(*devices()[0], problem), on(reference(), problem)), 1e-2);
  const std::vector<float> whole = in_chunks(*devices()[0], problem, {250});
  EXPECT_EQ(in_chunks(*devices()[0], problem, {64, 128, 192, 250}), whole);
}

// The card's own prefill kernel, by head dim, query heads a KV head, page and dtype. Several key tiles, query
// tiles that begin and end anywhere, sequences of one row, pages that are left in their middle.
class DeviceVendorPrefill : public testing::TestWithParam<std::tuple<Index, Index, Index, DType>> {
 protected:
  Problem problem() const {
    const auto& [head_dim, group, page_tokens, dtype] = GetParam();
    return {.dtype = dtype,
            .num_q_heads = 2 * group,
            .num_kv_heads = 2,
            .head_dim = head_dim,
            .page_tokens = page_tokens,
            .prefill = {{2, 0, 5}, {3, 64, 264}, {4, 130, 131}, {5, 1000, 1100}, {6, 128, 256}},
            .prefill_path = AttentionPath::kVendorPrefill};
  }
  void SetUp() override {
    const Problem p = problem();
    if (!device::has_vendor_prefill(0, {p.dtype, p.dtype, p.head_dim, p.page_tokens}))
      GTEST_SKIP() << "this device runs vendor_prefill through the kernel of unified";
  }
};

TEST_P(DeviceVendorPrefill, MatchesReference) {
  Problem small = problem();
  small.num_q_heads /= small.num_kv_heads;
  small.num_kv_heads = 1;
  small.prefill = {{2, 0, 5}, {3, 64, 130}, {4, 500, 507}};
  expect_like_reference(*devices()[0], small);
}

TEST_P(DeviceVendorPrefill, GivesTheBitsOfUnified) {
  for (const bool gated : {true, false}) {
    Problem vendor = problem();
    vendor.gated = gated;
    Problem unified = vendor;
    unified.prefill_path = AttentionPath::kUnified;
    EXPECT_EQ(on(*devices()[0], vendor), on(*devices()[0], unified));
  }
}

TEST_P(DeviceVendorPrefill, ChunkingChangesNoBit) {
  const std::vector<float> whole = in_chunks(*devices()[0], problem(), {450});
  EXPECT_EQ(in_chunks(*devices()[0], problem(), {64, 128, 320, 450}), whole);
  EXPECT_EQ(in_chunks(*devices()[0], problem(), {37, 166, 449, 450}), whole);
}

TEST_P(DeviceVendorPrefill, MisalignedTensorsRunThroughUnified) {
  Problem odd = problem();
  odd.misalignment = 1;
  Problem unified = odd;
  unified.prefill_path = AttentionPath::kUnified;
  EXPECT_EQ(on(*devices()[0], odd), on(*devices()[0], unified));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DeviceVendorPrefill,
    testing::Values(std::tuple(128, 6, 64, DType::kBF16), std::tuple(128, 8, 832, DType::kBF16),
                    std::tuple(128, 6, 1024, DType::kF16), std::tuple(256, 6, 64, DType::kBF16),
                    std::tuple(256, 6, 832, DType::kBF16), std::tuple(256, 8, 1024, DType::kBF16),
                    std::tuple(256, 8, 832, DType::kF16)));

TEST(DeviceAttention, OneCallTakesDecodeAndPrefillTogether) {
  for (StagedBackend* device : devices()) {
    const Problem problem{.decode = {{1, 70, 71}, {2, 5, 6}}, .prefill = {{3, 64, 100}}};
    Step apart(problem), together(problem);
    const std::vector<float> expected = apart.run(*device);
    device->attention(together.args());
    EXPECT_EQ(together.read_out(), expected);
  }
}

}  // namespace
}  // namespace longspan::ops::test
