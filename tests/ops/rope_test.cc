// Rotary angles and the q/k/v write on the CPU, against the reference and against first principles.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/cpu/backend.h"
#include "ops/reference/backend.h"
#include "rope_case.h"

namespace longspan::ops::test {
namespace {

std::unique_ptr<Backend> cpu_backend(int num_threads = 2) {
  return cpu::make_backend({.num_threads = num_threads});
}

std::vector<float> run(const RopeShape& shape, Backend& backend) {
  const RopeProblem problem(shape);
  backend.qk_rope_write(problem.args());
  return problem.memory();
}

// fp32 sums in another order: 1e-6 of the largest value. bf16: that may tip a rounding, one step of 2^-8.
void expect_like_reference(const RopeShape& shape) {
  const std::vector<float> got = run(shape, *cpu_backend());
  const std::vector<float> expected = run(shape, *reference::make_backend());
  ASSERT_EQ(got.size(), expected.size());
  const float step = shape.dtype == DType::kF32 ? 2e-6f : 1.0f / 128;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], step * std::max(std::abs(expected[i]), 0.25f))
        << "element " << i << ", dim " << shape.head_dim << ", " << dtype_name(shape.dtype);
}

TEST(QkRopeWrite, MatchesReferenceInEveryShape) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (Index head_dim : {2, 16, 20, 32, 64, 80, 128, 256})
      for (Index rotary_dim : {Index{2}, head_dim / 4 * 2, head_dim})
        expect_like_reference({.dtype = dtype, .head_dim = head_dim, .rotary_dim = rotary_dim});
}

TEST(QkRopeWrite, MatchesReferenceForEveryNormAndAlignment) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (Index misalignment : {0, 1, 7}) {
      const RopeShape shape{.dtype = dtype, .misalignment = misalignment};
      expect_like_reference(shape);
      RopeShape plain = shape;
      plain.normed = false;
      expect_like_reference(plain);
      RopeShape twice = shape;
      twice.norm_kind = NormKind::kRoundThenScale;
      expect_like_reference(twice);
    }
}

TEST(QkRopeWrite, InPlaceAndApartGiveTheSameBits) {
  const RopeShape shape;
  const RopeProblem in_place(shape), apart(shape);
  Buffer out(shape.dtype, {shape.num_tokens, shape.num_q_heads, shape.head_dim});
  QkRopeWrite call = apart.args();
  call.q_out = out.view();
  const std::unique_ptr<Backend> backend = cpu_backend();
  backend->qk_rope_write(call);
  backend->qk_rope_write(in_place.args());
  const TensorView q = in_place.args().q;
  for (Index t = 0; t < shape.num_tokens; ++t)
    for (Index head = 0; head < shape.num_q_heads; ++head)
      for (Index d = 0; d < shape.head_dim; ++d)
        ASSERT_EQ(q.as<bf16>()[t * q.stride(0) + head * q.stride(1) + d].bits,
                  out.view().as<bf16>()[(t * shape.num_q_heads + head) * shape.head_dim + d].bits);
}

TEST(QkRopeWrite, ThreadsChangeNoBit) {
  const RopeShape shape{.num_tokens = 64};
  const std::vector<float> expected = run(shape, *cpu_backend(1));
  EXPECT_EQ(run(shape, *cpu_backend(2)), expected);
  EXPECT_EQ(run(shape, *cpu_backend(3)), expected);
}

// cos and sin of the fp32 angle, in double and rounded: the best a float can hold, so one unit in the last
// place is allowed, near a zero too.
TEST(RopeAngles, AreAccurateUpToAMillion) {
  const std::vector<int32_t> positions{0, 1, 2, 63, 4095, 131071, 262143, 999999, 1048575};
  const Index half = 32;
  Buffer position_rows(DType::kI32, {static_cast<Index>(positions.size())});
  Buffer inv_freq(DType::kF32, {half});
  Buffer cos_sin(DType::kF32, {static_cast<Index>(positions.size()), 2 * half});
  std::copy(positions.begin(), positions.end(), position_rows.view().as<int32_t>());
  for (Index j = 0; j < half; ++j)
    inv_freq.view().as<float>()[j] = static_cast<float>(std::pow(1e7, -static_cast<double>(j) / half));
  cpu_backend()->rope_angles({position_rows.view(), inv_freq.view(), cos_sin.view()});

  const auto near = [](float got, double exact) {
    const float best = static_cast<float>(exact);
    return got >= std::nextafterf(best, -2.0f) && got <= std::nextafterf(best, 2.0f);
  };
  for (size_t t = 0; t < positions.size(); ++t)
    for (Index j = 0; j < half; ++j) {
      const float angle = static_cast<float>(positions[t]) * inv_freq.view().as<float>()[j];
      const float* row = cos_sin.view().as<float>() + static_cast<Index>(t) * 2 * half;
      EXPECT_TRUE(near(row[j], std::cos(static_cast<double>(angle)))) << positions[t] << " " << j;
      EXPECT_TRUE(near(row[half + j], std::sin(static_cast<double>(angle)))) << positions[t] << " " << j;
    }
}

}  // namespace
}  // namespace longspan::ops::test
