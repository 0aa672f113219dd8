// What an FP8 cache promises of every backend: attention gives the bits of a cache that holds the decoded
// values, and the write gives the scalar conversion's codes.
#pragma once

#include <gtest/gtest.h>

#include "paged_attention.h"
#include "rope_case.h"

namespace longspan::ops::test {

inline std::vector<float> run_as(Backend& backend, Problem problem, CacheForm cache) {
  problem.cache = cache;
  return Step(problem).run(backend);
}

// The bits of the decoded cache, and so the reference's values, whose own cache holds codes too.
inline void expect_as_decoded(Backend& backend, Backend& reference, const Problem& problem,
                              double tolerance) {
  const std::vector<float> got = run_as(backend, problem, CacheForm::kCodes);
  EXPECT_EQ(got, run_as(backend, problem, CacheForm::kDecoded))
      << backend.name() << " " << dtype_name(problem.dtype) << " dim " << problem.head_dim << " page "
      << problem.page_tokens;
  EXPECT_LT(relative_error(got, run_as(reference, problem, CacheForm::kCodes)), tolerance)
      << backend.name() << " " << dtype_name(problem.dtype) << " dim " << problem.head_dim << " page "
      << problem.page_tokens;
}

// The codes that a plain cache's elements should have become, and the count of those that saturate.
inline void expect_scalar_codes(Backend& backend, RopeShape shape) {
  const RopeProblem plain(shape);
  shape.codes = true;
  const RopeProblem coded(shape);
  backend.qk_rope_write(plain.args());
  backend.qk_rope_write(coded.args());
  const std::vector<float> values = plain.cache();
  int64_t num_saturated = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const Index scale_index = coded.scale_index(static_cast<Index>(i));
    if (scale_index < 0) continue;
    const float value = values[i] / RopeProblem::scale(scale_index);
    num_saturated += std::abs(value) > 448.0f ? 1 : 0;
    ASSERT_EQ(coded.codes()[i].bits, f8e4m3(value).bits)
        << backend.name() << " element " << i << ": " << value;
    ASSERT_NE(coded.codes()[i].bits & 0x7f, 0x7f) << "NaN from " << value;
  }
  EXPECT_GT(num_saturated, 0);
  EXPECT_EQ(coded.num_saturated(), num_saturated) << backend.name();
}

}  // namespace longspan::ops::test
