// Attention on the CPU: against the reference, and bit for bit against itself however a prompt is cut, paged,
// batched and spread over threads.
#include "ops/cpu/attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>

#include "ops/cpu/backend.h"
#include "ops/reference/backend.h"
#include "paged_attention.h"

namespace longspan::ops::test {
namespace {

std::unique_ptr<Backend> cpu_backend(int num_threads = 2) {
  return cpu::make_backend({.num_threads = num_threads});
}

std::vector<float> on_cpu(const Problem& problem, int num_threads = 2) {
  return Step(problem).run(*cpu_backend(num_threads));
}

std::vector<float> on_reference(const Problem& problem) {
  return Step(problem).run(*reference::make_backend());
}

// float: fp32 sums in another order. bf16: each probability, each gate step and each output is rounded to 8
// bits, 2^-9 / sqrt(3) = 1.1e-3 a time; 2.7e-3 is the most seen.
double tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 4e-3; }

void expect_like_reference(const Problem& problem) {
  const double error = relative_error(on_cpu(problem), on_reference(problem));
  EXPECT_LT(error, tolerance(problem.dtype))
      << dtype_name(problem.dtype) << " heads " << problem.num_q_heads << "/" << problem.num_kv_heads
      << " dim " << problem.head_dim << " page " << problem.page_tokens;
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

TEST(Attention, MatchesReferenceForEveryHeadDim) {
  for (DType dtype : kDTypes)
    for (Index head_dim : {1, 8, 16, 20, 32, 64, 80, 128, 256})
      expect_like_reference({.dtype = dtype,
                             .head_dim = head_dim,
                             .decode = {{1, 76, 77}},
                             .prefill = {{2, 0, 35}, {3, 64, 83}}});
}

TEST(Attention, MatchesReferenceForEveryGroupSize) {
  for (DType dtype : kDTypes)
    for (Index group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 40})
      expect_like_reference({.dtype = dtype,
                             .num_q_heads = 2 * group,
                             .num_kv_heads = 2,
                             .head_dim = 16,
                             .decode = {{1, 130, 131}},
                             .prefill = {{2, 0, 19}, {3, 64, 70}}});
}

TEST(Attention, MatchesReferenceForOddLengths) {
  for (DType dtype : kDTypes)
    for (Index length : {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300})
      expect_like_reference({.dtype = dtype,
                             .num_q_heads = 3,
                             .num_kv_heads = 1,
                             .head_dim = 16,
                             .decode = {{1, length - 1, length}},
                             .prefill = {{2, 0, length}, {3, length - 1, length}}});
}

TEST(Attention, MatchesReferenceOverSeveralSegmentsAndTiles) {
  for (DType dtype : kDTypes)
    expect_like_reference({.dtype = dtype,
                           .head_dim = 32,
                           .page_tokens = 784,
                           .decode = {{1, 2499, 2500}, {2, 511, 512}, {3, 512, 513}},
                           .prefill = {{4, 1984, 2010}, {5, 768, 771}}});
}

TEST(Attention, MatchesReferenceWithoutGateAndMisaligned) {
  for (DType dtype : kDTypes)
    for (Index misalignment : {0, 1, 3})
      expect_like_reference({.dtype = dtype,
                             .head_dim = 72,
                             .decode = {{1, 99, 100}},
                             .prefill = {{2, 0, 50}},
                             .gated = false,
                             .misalignment = misalignment});
}

// Every vector width of this processor, best first; the products inside have a test of their own.
TEST(Attention, MatchesReferenceOnEveryInstructionSet) {
  const int64_t all = hwy::SupportedTargets();
  for (int64_t left = all; (left & ~(HWY_SCALAR | HWY_EMU128)) != 0; left &= left - 1) {
    hwy::GetChosenTarget().Update(left);
    for (DType dtype : kDTypes)
      for (Index head_dim : {20, 128})
        expect_like_reference({.dtype = dtype,
                               .num_q_heads = 6,
                               .num_kv_heads = 1,
                               .head_dim = head_dim,
                               .decode = {{1, 100, 101}},
                               .prefill = {{2, 64, 90}}});
  }
  hwy::GetChosenTarget().Update(all);
}

TEST(Attention, SurvivesLargeScores) {
  // A standard deviation of 300: the softmax is one-hot, exp of the naive form would overflow. In float the
  // score itself carries an error of 300 * 2^-24 * a few, which exp hands on.
  Problem problem{
      .dtype = DType::kF32, .decode = {{1, 299, 300}}, .prefill = {{2, 0, 40}}, .score_size = 300};
  EXPECT_LT(relative_error(on_cpu(problem), on_reference(problem)), 2e-4);
  problem.dtype = DType::kBF16;
  EXPECT_LT(relative_error(on_cpu(problem), on_reference(problem)), 1e-2);
}

TEST(Attention, ReachesAMillionPositions) {
  constexpr Index kLength = 1000001;
  const Problem problem{.dtype = DType::kF32,
                        .num_q_heads = 2,
                        .num_kv_heads = 1,
                        .head_dim = 4,
                        .page_tokens = 1024,
                        .decode = {{1, kLength - 1, kLength}},
                        .prefill = {{1, kLength - 1, kLength}},
                        .gated = false};
  // A million terms cancel to a thousandth of their size, and so does the precision.
  EXPECT_LT(relative_error(on_cpu(problem), on_reference(problem)), 1e-3);
}

TEST(Attention, EqualScoresGiveTheMean) {
  Problem problem{.dtype = DType::kF32, .decode = {{1, 1499, 1500}}, .gated = false, .score_size = 0};
  EXPECT_LT(relative_error(on_cpu(problem), on_reference(problem)), 1e-5);
  problem.prefill = {{2, 192, 300}};
  EXPECT_LT(relative_error(on_cpu(problem), on_reference(problem)), 1e-5);
}

TEST(Attention, FirstTokenReadsItsOwnValue) {
  const Problem problem{.decode = {{1, 0, 1}}, .prefill = {{1, 0, 1}}, .gated = false};
  const std::vector<float> out = on_cpu(problem);
  for (Index head = 0; head < problem.num_q_heads; ++head) {
    const std::vector<float> value = token_values(1, 0, 'v', head / 2, problem.head_dim);
    for (Index d = 0; d < problem.head_dim; ++d) {
      const float expected = static_cast<float>(bf16(value[static_cast<size_t>(d)]));
      EXPECT_EQ(out[static_cast<size_t>(head * problem.head_dim + d)], expected);
      EXPECT_EQ(out[static_cast<size_t>((problem.num_q_heads + head) * problem.head_dim + d)], expected);
    }
  }
}

// Outputs of positions 0 .. length - 1 of sequence 1, computed in chunks that end at `ends`.
std::vector<float> in_chunks(Problem problem, const std::vector<Index>& ends, int num_threads = 2) {
  std::vector<float> all;
  Index begin = 0;
  for (Index end : ends) {
    problem.prefill = {{1, begin, end}};
    const std::vector<float> part = on_cpu(problem, num_threads);
    all.insert(all.end(), part.begin(), part.end());
    begin = end;
  }
  return all;
}

std::vector<Index> ends_by(Index step, Index length) {
  std::vector<Index> ends;
  for (Index end = step; end < length; end += step) ends.push_back(end);
  ends.push_back(length);
  return ends;
}

TEST(AttentionDeterminism, ChunkingChangesNoBit) {
  for (DType dtype : kDTypes) {
    const Problem problem{.dtype = dtype, .num_q_heads = 6, .num_kv_heads = 1, .head_dim = 32};
    const Index length = 577;
    const std::vector<float> whole = in_chunks(problem, {length});
    EXPECT_EQ(in_chunks(problem, ends_by(64, length)), whole);
    EXPECT_EQ(in_chunks(problem, ends_by(192, length)), whole);
    EXPECT_EQ(in_chunks(problem, {320, 512, length}), whole);
    EXPECT_EQ(in_chunks(problem, {64, 576, length}), whole) << "the last token alone keeps the prefill form";
    EXPECT_EQ(in_chunks(problem, ends_by(37, length)), whole) << "not promised, but true";
  }
}

TEST(AttentionDeterminism, PagesBatchMatesAndThreadsChangeNoBit) {
  for (DType dtype : kDTypes) {
    const Problem alone{.dtype = dtype, .head_dim = 32, .prefill = {{1, 192, 500}}};
    const std::vector<float> expected = on_cpu(alone);
    for (Index page_tokens : {16, 48, 64, 784, 832, 1024}) {
      Problem problem = alone;
      problem.page_tokens = page_tokens;
      problem.table_seed = static_cast<unsigned>(page_tokens);
      EXPECT_EQ(on_cpu(problem), expected) << page_tokens;
    }
    for (int threads : {1, 3}) EXPECT_EQ(on_cpu(alone, threads), expected) << threads;
    Problem crowd = alone;
    crowd.prefill = {{1, 192, 500}, {2, 0, 100}, {3, 64, 65}};
    crowd.decode = {{4, 10, 11}, {5, 600, 601}};
    const std::vector<float> out = on_cpu(crowd);
    const auto row = static_cast<size_t>(alone.num_q_heads * alone.head_dim);
    const auto first = out.begin() + static_cast<std::ptrdiff_t>(2 * row);
    EXPECT_EQ(std::vector<float>(first, first + static_cast<std::ptrdiff_t>(expected.size())), expected);
  }
}

TEST(AttentionDeterminism, DecodePathsPagesBatchMatesAndThreadsChangeNoBit) {
  for (DType dtype : kDTypes)
    for (Index length : {1, 33, 512, 1300, 2049}) {
      const Problem alone{
          .dtype = dtype, .num_q_heads = 6, .head_dim = 40, .decode = {{1, length - 1, length}}};
      const std::vector<float> expected = on_cpu(alone);
      for (Index page_tokens : {16, 64, 784, 832, 1024})
        for (AttentionPath path : {AttentionPath::kUnified, AttentionPath::kPageContiguousDecode}) {
          Problem problem = alone;
          problem.page_tokens = page_tokens;
          problem.decode_path = path;
          EXPECT_EQ(on_cpu(problem, 3), expected) << length << " page " << page_tokens;
        }
      Problem crowd = alone;
      crowd.decode.clear();
      for (int i = 0; i < 11; ++i) crowd.decode.push_back({i + 2, 100 * i, 100 * i + 1});
      crowd.decode.push_back({1, length - 1, length});
      crowd.prefill = {{20, 0, 70}};
      const std::vector<float> out = on_cpu(crowd, 1);
      const auto first = out.begin() + static_cast<std::ptrdiff_t>(11 * expected.size());
      EXPECT_EQ(std::vector<float>(first, first + static_cast<std::ptrdiff_t>(expected.size())), expected);
    }
}

TEST(AttentionDeterminism, VendorPathIsTheUnifiedOne) {
  Problem problem{.prefill = {{1, 64, 200}}};
  const std::vector<float> unified = on_cpu(problem);
  problem.prefill_path = AttentionPath::kVendorPrefill;
  EXPECT_EQ(on_cpu(problem), unified);
}

TEST(Attention, OneCallTakesDecodeAndPrefillTogether) {
  const Problem problem{.decode = {{1, 70, 71}, {2, 5, 6}}, .prefill = {{3, 64, 100}}};
  Step apart(problem), together(problem);
  const std::unique_ptr<Backend> backend = cpu_backend();
  const std::vector<float> expected = apart.run(*backend);
  backend->attention(together.args());
  EXPECT_EQ(together.read_out(), expected);
}

TEST(Attention, WhatScratchHeldBeforeDoesNotMatter) {
  ThreadPool pool(2);
  cpu::Scratch scratch(2);
  constexpr size_t kBytes = size_t{16} << 20;  // more than the problem wants
  scratch.reserve(kBytes);
  for (int thread = 0; thread < 2; ++thread) std::memset(scratch.of_thread(thread), 0xff, kBytes);  // NaN
  const Problem problem{.decode = {{1, 70, 71}}, .prefill = {{2, 0, 37}}};
  const Step step(problem);
  cpu::attention({pool, scratch}, step.args());
  EXPECT_EQ(step.read_out(), on_cpu(problem));
}

TEST(Attention, ScratchDoesNotGrowWithContextOrBatch) {
  ThreadPool pool(2);
  cpu::Scratch scratch(2);
  const cpu::Context context{pool, scratch};
  const Step small({.decode = {{1, 9, 10}}, .prefill = {{2, 0, 5}}});
  cpu::attention(context, small.args());
  const void* before = scratch.of_thread(0);
  Problem large{.prefill = {{30, 1024, 1500}}};
  for (int i = 0; i < 20; ++i) large.decode.push_back({i + 1, 300 * i, 300 * i + 1});
  cpu::attention(context, Step(large).args());
  EXPECT_EQ(scratch.of_thread(0), before);
}

}  // namespace
}  // namespace longspan::ops::test
