// Rotary angles and the q/k/v write on the CPU, against the reference and against first principles.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/cpu/backend.h"
#include "ops/reference/backend.h"

namespace longspan::ops::test {
namespace {

std::unique_ptr<Backend> cpu_backend(int num_threads = 2) {
  return cpu::make_backend({.num_threads = num_threads});
}

struct Shape4 {
  DType dtype = DType::kBF16;
  Index num_tokens = 37;
  Index num_q_heads = 4;
  Index num_kv_heads = 2;
  Index head_dim = 64;
  Index rotary_dim = 16;
  bool normed = true;
  NormKind norm_kind = NormKind::kZeroCentered;
  Index misalignment = 0;  // elements
};

constexpr Index kPageTokens = 16;
constexpr Index kNumPages = 5;

// Buffers of one QkRopeWrite; equal for equal shapes. q, k and v are slices of one row, as a fused projection
// gives them; q heads have a gate behind each.
class Problem {
 public:
  explicit Problem(const Shape4& shape)
      : s_(shape),
        row_stride_((2 * s_.num_q_heads + 2 * s_.num_kv_heads) * s_.head_dim + 5),
        rows_(bytes(s_.num_tokens * row_stride_ + s_.misalignment)),
        cache_(bytes(kNumPages * page_elements() + s_.misalignment)),
        q_norm_(DType::kF32, {s_.head_dim}),
        k_norm_(DType::kF32, {s_.head_dim}),
        cos_sin_(DType::kF32, {s_.num_tokens, s_.rotary_dim}),
        slots_(DType::kI32, {s_.num_tokens}) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (Index i = 0; i < s_.num_tokens * row_stride_ + s_.misalignment; ++i) set(rows_, i, normal(random));
    for (Index d = 0; d < s_.head_dim; ++d) {
      q_norm_.view().as<float>()[d] = normal(random);
      k_norm_.view().as<float>()[d] = normal(random);
    }
    for (Index i = 0; i < s_.num_tokens * s_.rotary_dim; ++i)
      cos_sin_.view().as<float>()[i] = std::sin(static_cast<float>(i));
    // Scattered slots of pages 1 and up; every fifth token writes nothing.
    for (Index t = 0; t < s_.num_tokens; ++t)
      slots_.view().as<int32_t>()[t] = t % 5 == 4 ? -1 : static_cast<int32_t>(kPageTokens + t * 27 % 64);
  }

  QkRopeWrite args() const {
    QkRopeWrite call;
    const Index d = s_.head_dim;
    call.q = heads(0, s_.num_q_heads, 2 * d);
    call.k = heads(2 * s_.num_q_heads * d, s_.num_kv_heads, d);
    call.v = heads((2 * s_.num_q_heads + s_.num_kv_heads) * d, s_.num_kv_heads, d);
    if (s_.normed) {
      call.q_norm = q_norm_.view();
      call.k_norm = k_norm_.view();
    }
    call.norm_kind = s_.norm_kind;
    call.cos_sin = cos_sin_.view();
    call.slots = slots_.view();
    call.kv = {.data = static_cast<char*>(cache_.data()) + bytes(s_.misalignment),
               .dtype = s_.dtype,
               .num_pages = kNumPages,
               .page_stride_bytes = static_cast<Index>(bytes(page_elements())),
               .page_tokens = kPageTokens,
               .num_kv_heads = s_.num_kv_heads,
               .head_dim = d};
    call.q_out = call.q;
    return call;
  }

  // Every element of the rows, then of the cache: what must not be written is compared too.
  std::vector<float> memory() const {
    std::vector<float> values;
    for (const Buffer* buffer : {&rows_, &cache_})
      for (size_t i = 0; i < buffer->size_bytes() / dtype_size(s_.dtype); ++i)
        values.push_back(get(*buffer, static_cast<Index>(i)));
    return values;
  }

 private:
  size_t bytes(Index elements) const { return static_cast<size_t>(elements) * dtype_size(s_.dtype); }
  Index page_elements() const { return 2 * kPageTokens * s_.num_kv_heads * s_.head_dim + 8; }
  void set(const Buffer& buffer, Index i, float value) const {
    if (s_.dtype == DType::kF32)
      static_cast<float*>(buffer.data())[i] = value;
    else
      static_cast<bf16*>(buffer.data())[i] = bf16(value);
  }
  float get(const Buffer& buffer, Index i) const {
    return s_.dtype == DType::kF32 ? static_cast<float*>(buffer.data())[i]
                                   : static_cast<float>(static_cast<bf16*>(buffer.data())[i]);
  }
  TensorView heads(Index offset, Index num_heads, Index head_stride) const {
    TensorView view(static_cast<char*>(rows_.data()) + bytes(s_.misalignment + offset), s_.dtype,
                    {s_.num_tokens, num_heads, s_.head_dim});
    view.strides = {row_stride_, head_stride, 1, 0};
    return view;
  }

  Shape4 s_;
  Index row_stride_;
  Buffer rows_, cache_, q_norm_, k_norm_, cos_sin_, slots_;
};

std::vector<float> run(const Shape4& shape, Backend& backend) {
  const Problem problem(shape);
  backend.qk_rope_write(problem.args());
  return problem.memory();
}

// fp32 sums in another order: 1e-6 of the largest value. bf16: that may tip a rounding, one step of 2^-8.
void expect_like_reference(const Shape4& shape) {
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
      const Shape4 shape{.dtype = dtype, .misalignment = misalignment};
      expect_like_reference(shape);
      Shape4 plain = shape;
      plain.normed = false;
      expect_like_reference(plain);
      Shape4 twice = shape;
      twice.norm_kind = NormKind::kRoundThenScale;
      expect_like_reference(twice);
    }
}

TEST(QkRopeWrite, InPlaceAndApartGiveTheSameBits) {
  const Shape4 shape;
  const Problem in_place(shape), apart(shape);
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
  const Shape4 shape{.num_tokens = 64};
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
