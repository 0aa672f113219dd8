// An FP8 cache on the CPU: every kernel reads codes as it would read the values they stand for.
#include "fp8_cache_case.h"

#include <hwy/targets.h>

#include "ops/cpu/backend.h"
#include "ops/reference/backend.h"

namespace longspan::ops::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

Backend& cpu_device() {
  static const std::unique_ptr<Backend> backend = cpu::make_backend({.num_threads = 2});
  return *backend;
}
Backend& oracle() {
  static const std::unique_ptr<Backend> backend = reference::make_backend();
  return *backend;
}

// bf16: probabilities, gate steps and outputs are rounded to 8 bits.
void expect_cpu_as_decoded(const Problem& problem) {
  expect_as_decoded(cpu_device(), oracle(), problem, problem.dtype == DType::kF32 ? 1e-5 : 4e-3);
}

TEST(Fp8Cache, ReadsAsDecodedForEveryHeadDimAndGroup) {
  for (const DType dtype : kDTypes)
    for (const auto& [group, head_dim] :
         {std::pair<Index, Index>{1, 1}, {2, 20}, {3, 16}, {6, 64}, {8, 128}, {9, 80}, {6, 256}})
      for (const bool scaled : {false, true})
        expect_cpu_as_decoded({.dtype = dtype,
                               .num_q_heads = 2 * group,
                               .num_kv_heads = 2,
                               .head_dim = head_dim,
                               .decode = {{1, 76, 77}},
                               .prefill = {{2, 0, 19}, {3, 64, 71}},
                               .scaled = scaled});
}

TEST(Fp8Cache, ReadsAsDecodedForOddLengthsAndPages) {
  for (const DType dtype : kDTypes)
    for (const Index page_tokens : {16, 64, 784, 832})
      for (const Index length : {1, 17, 63, 257, 1301})
        for (const AttentionPath path : {AttentionPath::kUnified, AttentionPath::kPageContiguousDecode})
          expect_cpu_as_decoded({.dtype = dtype,
                                 .num_q_heads = 3,
                                 .num_kv_heads = 1,
                                 .head_dim = 24,
                                 .page_tokens = page_tokens,
                                 .decode = {{1, length - 1, length}},
                                 .prefill = {{2, std::max<Index>(0, length - 5), length}},
                                 .misalignment = length % 2,
                                 .decode_path = path});
}

TEST(Fp8Cache, PathsPagesAndChunksChangeNoBit) {
  for (const DType dtype : kDTypes) {
    const Problem alone{
        .dtype = dtype, .head_dim = 40, .decode = {{1, 1299, 1300}}, .prefill = {{2, 0, 260}}};
    const std::vector<float> expected = run_as(cpu_device(), alone, CacheForm::kCodes);
    for (const Index page_tokens : {16, 64, 784, 832})
      for (const AttentionPath path : {AttentionPath::kUnified, AttentionPath::kPageContiguousDecode}) {
        Problem problem = alone;
        problem.page_tokens = page_tokens;
        problem.table_seed = static_cast<unsigned>(page_tokens);
        problem.decode_path = path;
        EXPECT_EQ(run_as(cpu_device(), problem, CacheForm::kCodes), expected) << page_tokens;
      }
    std::vector<float> in_chunks;
    for (const auto& [begin, end] : {std::pair<Index, Index>{0, 64}, {64, 192}, {192, 260}}) {
      const std::vector<float> part = run_as(
          cpu_device(), {.dtype = dtype, .head_dim = 40, .prefill = {{2, begin, end}}}, CacheForm::kCodes);
      in_chunks.insert(in_chunks.end(), part.begin(), part.end());
    }
    const auto row = static_cast<std::ptrdiff_t>(alone.num_q_heads * alone.head_dim);
    EXPECT_TRUE(std::equal(in_chunks.begin(), in_chunks.end(), expected.begin() + row));
  }
}

TEST(Fp8Cache, WritesTheScalarCodes) {
  for (const DType dtype : kDTypes)
    for (const Index head_dim : {2, 20, 64, 256})
      for (const Index misalignment : {0, 1})
        expect_scalar_codes(
            cpu_device(),
            {.dtype = dtype, .head_dim = head_dim, .rotary_dim = 2, .misalignment = misalignment});
  expect_scalar_codes(oracle(), {});
}

// Every vector width of this processor.
TEST(Fp8Cache, HoldsOnEveryInstructionSet) {
  const int64_t all = hwy::SupportedTargets();
  for (int64_t left = all; (left & ~(HWY_SCALAR | HWY_EMU128)) != 0; left &= left - 1) {
    hwy::GetChosenTarget().Update(left);
    for (const DType dtype : kDTypes) {
      expect_cpu_as_decoded({.dtype = dtype,
                             .num_q_heads = 6,
                             .num_kv_heads = 1,
                             .head_dim = 20,
                             .decode = {{1, 100, 101}},
                             .prefill = {{2, 64, 90}}});
      expect_scalar_codes(cpu_device(), {.dtype = dtype, .head_dim = 20, .rotary_dim = 4});
    }
  }
  hwy::GetChosenTarget().Update(all);
}

// Every code through the cache and back: decode of one token returns its V.
TEST(Fp8Cache, EveryCodeIsReadExactly) {
  Problem problem{.dtype = DType::kF32,
                  .num_q_heads = 1,
                  .num_kv_heads = 1,
                  .head_dim = 256,
                  .decode = {{1, 0, 1}},
                  .gated = false,
                  .score_size = 0,
                  .cache = CacheForm::kCodes,
                  .scaled = false};
  for (Backend* backend : {&cpu_device(), &oracle()}) {
    Step step(problem);
    const Attention call = step.args();
    const Index page = call.block_table.as<int32_t>()[0];
    auto* codes =
        reinterpret_cast<f8e4m3*>(static_cast<char*>(call.kv.data) + page * call.kv.page_stride_bytes);
    for (int i = 0; i < 256; ++i) codes[problem.page_tokens * 256 + i].bits = static_cast<uint8_t>(i);
    const std::vector<float> out = step.run(*backend);
    for (int i = 0; i < 256; ++i) {
      f8e4m3 code;
      code.bits = static_cast<uint8_t>(i);
      if ((i & 0x7f) == 0x7f)
        EXPECT_TRUE(std::isnan(out[static_cast<size_t>(i)])) << i;
      else
        EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(code)) << i;
    }
  }
}

}  // namespace
}  // namespace longspan::ops::test
