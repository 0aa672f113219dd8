// The small product against a double-precision oracle, on every instruction set this machine has.
#include "ops/cpu/tile_gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/cpu/gemm_kernels.h"
#include "support/guarded.h"

namespace longspan::ops::cpu {
namespace {

constexpr float kUntouched = 12345.0f;

template <class T>
std::vector<T> random_values(Index count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = T(normal(random));
  return values;
}

// One product's operands: A with `lda` and an odd start, B packed from either orientation.
template <class T>
struct Problem {
  Index m, n, k, lda;
  std::vector<T> a_memory;  // [1 + m * lda]; A starts one element in
  std::vector<T> b;         // [k, n]
  Buffer packed;

  Problem(Index m_, Index n_, Index k_, Index lda_, uint32_t seed = 1)
      : m(m_),
        n(n_),
        k(k_),
        lda(lda_),
        a_memory(random_values<T>(1 + m_ * lda_, seed)),
        b(random_values<T>(k_ * n_, seed + 1)),
        packed(static_cast<size_t>(packed_elements<T>(k_, n_)) * sizeof(T)) {
    // What lies behind a row of A must not matter.
    for (Index i = 0; i < m; ++i)
      for (Index kk = k; kk < lda; ++kk) a(i)[kk] = T(std::numeric_limits<float>::quiet_NaN());
    std::memset(packed.data(), 0xff, packed.size_bytes());
  }
  T* a(Index i) { return a_memory.data() + 1 + i * lda; }
  T* panels() { return static_cast<T*>(packed.data()); }
};

template <class T>
void pack(const GemmKernels& kernels, Problem<T>& problem) {
  kernels.of<T>().pack_b(problem.b.data(), problem.n, problem.k, problem.n, problem.panels());
}

// Runs the product on a C of `ldc` columns filled with `start` and compares with the oracle; columns n .. ldc
// stay as they were.
template <class T>
void expect_product(const GemmKernels& kernels, Problem<T>& problem, Accumulate accumulate) {
  const Index ldc = problem.n + 3;
  const std::vector<float> start = random_values<float>(problem.m * ldc, 9);
  std::vector<float> c = start;
  pack(kernels, problem);
  kernels.of<T>().gemm(problem.a(0), problem.lda, problem.panels(), c.data(), ldc, problem.m, problem.n,
                       problem.k, accumulate);
  for (Index i = 0; i < problem.m; ++i) {
    for (Index j = 0; j < problem.n; ++j) {
      const size_t at = static_cast<size_t>(i * ldc + j);
      double want = accumulate == Accumulate::kYes ? start[at] : 0.0;
      double magnitude = std::abs(want);
      for (Index kk = 0; kk < problem.k; ++kk) {
        const double term =
            static_cast<double>(static_cast<float>(problem.a(i)[kk])) *
            static_cast<double>(static_cast<float>(problem.b[static_cast<size_t>(kk * problem.n + j)]));
        want += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(c[at], want, 2e-6 * magnitude + 1e-30)
          << kernels.name << " m " << problem.m << " n " << problem.n << " k " << problem.k << " at (" << i
          << ", " << j << ")";
    }
    for (Index j = problem.n; j < ldc; ++j)
      ASSERT_EQ(c[static_cast<size_t>(i * ldc + j)], start[static_cast<size_t>(i * ldc + j)])
          << kernels.name << ": wrote past column " << problem.n;
  }
}

template <class T>
class TileGemm : public testing::Test {};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(TileGemm, Types);

TYPED_TEST(TileGemm, MatchesTheOracleForAnySmallShape) {
  for (const GemmKernels& kernels : available_kernels())
    for (Index m : {1, 2, 7, 8, 15, 16, 17, 32, 33, 70})
      for (Index n : {1, 15, 16, 17, 31, 32, 33, 48, 65})
        for (Index k : {1, 2, 3, 31, 32, 33, 70}) {
          Problem<TypeParam> problem(m, n, k, k + (m + n) % 5);
          expect_product(kernels, problem, (m + n + k) % 2 == 0 ? Accumulate::kYes : Accumulate::kNo);
          if (this->HasFatalFailure()) return;
        }
}

TYPED_TEST(TileGemm, MatchesTheOracleForLongSums) {
  for (const GemmKernels& kernels : available_kernels())
    for (Index k : {255, 256, 257, 511, 1024, 3584, 4099})
      for (Index m : {1, 5, 33}) {
        Problem<TypeParam> problem(m, 37, k, k + 1);
        expect_product(kernels, problem, Accumulate::kNo);
        expect_product(kernels, problem, Accumulate::kYes);
        if (this->HasFatalFailure()) return;
      }
}

TYPED_TEST(TileGemm, BothPackingsGiveTheSamePanels) {
  for (const GemmKernels& kernels : available_kernels())
    for (Index n : {1, 3, 4, 15, 16, 17, 21, 40, 64})
      for (Index k : {1, 2, 7, 8, 9, 31, 32, 33, 64, 77, 128}) {
        Problem<TypeParam> problem(1, n, k, k);
        pack(kernels, problem);
        const Index ldb = k + 3;  // odd rows: no alignment is promised
        std::vector<TypeParam> transposed(static_cast<size_t>(n * ldb),
                                          TypeParam(std::numeric_limits<float>::quiet_NaN()));
        for (Index j = 0; j < n; ++j)
          for (Index kk = 0; kk < k; ++kk)
            transposed[static_cast<size_t>(j * ldb + kk)] = problem.b[static_cast<size_t>(kk * n + j)];
        Buffer other(problem.packed.size_bytes());
        std::memset(other.data(), 0xff, other.size_bytes());
        auto* panels = static_cast<TypeParam*>(other.data());
        kernels.of<TypeParam>().pack_b_transposed(transposed.data(), ldb, k, n, panels);
        ASSERT_EQ(std::memcmp(other.data(), problem.packed.data(), other.size_bytes()), 0)
            << kernels.name << " n " << n << " k " << k;
      }
}

TYPED_TEST(TileGemm, ARowDoesNotDependOnItsNeighbours) {
  for (const GemmKernels& kernels : available_kernels())
    for (Index k : {31, 64, 300, 1024}) {
      const Index n = 50;
      Problem<TypeParam> problem(70, n, k, k + 2);
      pack(kernels, problem);
      std::vector<float> all(static_cast<size_t>(70 * n));
      kernels.of<TypeParam>().gemm(problem.a(0), problem.lda, problem.panels(), all.data(), n, 70, n, k,
                                   Accumulate::kNo);
      for (Index m = 1; m <= 70; ++m)
        for (Index first : {Index{0}, 70 - m}) {
          std::vector<float> some(static_cast<size_t>(m * n));
          kernels.of<TypeParam>().gemm(problem.a(first), problem.lda, problem.panels(), some.data(), n, m, n,
                                       k, Accumulate::kNo);
          ASSERT_EQ(std::memcmp(some.data(), all.data() + first * n, some.size() * sizeof(float)), 0)
              << kernels.name << " m " << m << " from row " << first << " k " << k;
        }
    }
}

TYPED_TEST(TileGemm, AColumnDoesNotDependOnTheNumberOfColumns) {
  for (const GemmKernels& kernels : available_kernels()) {
    const Index n = 100, k = 96;
    Problem<TypeParam> problem(20, n, k, k);
    pack(kernels, problem);
    std::vector<float> all(static_cast<size_t>(20 * n));
    kernels.of<TypeParam>().gemm(problem.a(0), k, problem.panels(), all.data(), n, 20, n, k, Accumulate::kNo);
    for (Index cols = 1; cols <= n; ++cols) {
      std::vector<float> some(static_cast<size_t>(20 * n));
      kernels.of<TypeParam>().gemm(problem.a(0), k, problem.panels(), some.data(), n, 20, cols, k,
                                   Accumulate::kNo);
      for (Index i = 0; i < 20; ++i)
        ASSERT_EQ(std::memcmp(&some[static_cast<size_t>(i * n)], &all[static_cast<size_t>(i * n)],
                              static_cast<size_t>(cols) * sizeof(float)),
                  0)
            << kernels.name << " columns " << cols;
    }
  }
}

TYPED_TEST(TileGemm, IsExactWhenEverySumIs) {
  for (const GemmKernels& kernels : available_kernels()) {
    const Index m = 33, n = 49, k = 515;
    Problem<TypeParam> problem(m, n, k, k);
    for (Index i = 0; i < m * k; ++i) problem.a(0)[i] = TypeParam(static_cast<float>(i % 17 - 8));
    for (size_t i = 0; i < problem.b.size(); ++i)
      problem.b[i] = TypeParam(static_cast<float>(static_cast<int>(i % 13) - 6));
    pack(kernels, problem);
    std::vector<float> c(static_cast<size_t>(m * n));
    kernels.of<TypeParam>().gemm(problem.a(0), k, problem.panels(), c.data(), n, m, n, k, Accumulate::kNo);
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) {
        Index want = 0;
        for (Index kk = 0; kk < k; ++kk) want += ((i * k + kk) % 17 - 8) * ((kk * n + j) % 13 - 6);
        ASSERT_EQ(c[static_cast<size_t>(i * n + j)], static_cast<float>(want)) << kernels.name;
      }
  }
}

TYPED_TEST(TileGemm, NanAndInfinityReachTheirRowAndColumnOnly) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const GemmKernels& kernels : available_kernels())
    for (Index k : {3, 40}) {
      const Index m = 18, n = 20;
      Problem<TypeParam> problem(m, n, k, k);
      for (TypeParam& value : problem.b) value = TypeParam(1.0f);
      for (Index i = 0; i < m * k; ++i) problem.a(0)[i] = TypeParam(1.0f);
      problem.a(2)[k - 1] = TypeParam(nan);
      problem.a(17)[0] = TypeParam(inf);
      problem.b[static_cast<size_t>((k - 1) * n + 19)] = TypeParam(-inf);
      pack(kernels, problem);
      std::vector<float> c(static_cast<size_t>(m * n), kUntouched);
      kernels.of<TypeParam>().gemm(problem.a(0), k, problem.panels(), c.data(), n, m, n, k, Accumulate::kNo);
      for (Index i = 0; i < m; ++i)
        for (Index j = 0; j < n; ++j) {
          const float got = c[static_cast<size_t>(i * n + j)];
          if (i == 2 || (i == 17 && j == 19))
            ASSERT_TRUE(std::isnan(got)) << kernels.name << " (" << i << ", " << j << ") " << got;
          else if (i == 17)
            ASSERT_EQ(got, inf) << kernels.name;
          else if (j == 19)
            ASSERT_EQ(got, -inf) << kernels.name;
          else
            ASSERT_EQ(got, static_cast<float>(k)) << kernels.name;
        }
    }
}

// All operands end where their memory does.
TYPED_TEST(TileGemm, TouchesNothingOutsideItsOperands) {
  for (const GemmKernels& kernels : available_kernels())
    for (Index m : {1, 3, 8, 17, 33})
      for (Index n : {1, 16, 19, 50})
        for (Index k : {1, 7, 31, 32, 45, 257}) {
          const auto count = [](Index rows, Index cols) { return static_cast<size_t>(rows * cols); };
          const Guarded<TypeParam> a(count(m, k)), b(count(k, n));
          const Guarded<TypeParam> packed(static_cast<size_t>(packed_elements<TypeParam>(k, n)));
          const Guarded<TypeParam> out(count(m, n));
          const Guarded<float> c(count(m, n)), bias(count(1, n));
          const TypedKernels<TypeParam>& typed = kernels.of<TypeParam>();
          typed.pack_b(b.data(), n, k, n, packed.data());
          typed.pack_b_transposed(b.data(), k, k, n, packed.data());
          typed.gemm(a.data(), k, packed.data(), c.data(), n, m, n, k, Accumulate::kNo);
          typed.gemm(a.data(), k, packed.data(), c.data(), n, m, n, k, Accumulate::kYes);
          typed.round_rows(c.data(), n, bias.data(), out.data(), n, m, n);
        }
}

TYPED_TEST(TileGemm, RoundsToNearestEven) {
  const Index m = 3, n = 37;
  std::vector<float> c = random_values<float>(m * (n + 1), 3), bias = random_values<float>(n, 4);
  c[0] = std::bit_cast<float>(0x3f808000u);  // halfway: down to even
  c[1] = std::bit_cast<float>(0x3f818000u);  // halfway: up to even
  c[2] = std::numeric_limits<float>::infinity();
  c[3] = std::numeric_limits<float>::quiet_NaN();
  c[4] = -0.0f;
  for (const GemmKernels& kernels : available_kernels())
    for (const bool has_bias : {false, true}) {
      std::vector<TypeParam> out(static_cast<size_t>(m * n));
      kernels.of<TypeParam>().round_rows(c.data(), n + 1, has_bias ? bias.data() : nullptr, out.data(), n, m,
                                         n);
      for (Index i = 0; i < m; ++i)
        for (Index j = 0; j < n; ++j) {
          const float sum = c[static_cast<size_t>(i * (n + 1) + j)];
          const auto want = TypeParam(has_bias ? sum + bias[static_cast<size_t>(j)] : sum);
          ASSERT_EQ(std::memcmp(&out[static_cast<size_t>(i * n + j)], &want, sizeof(want)), 0)
              << kernels.name << " (" << i << ", " << j << ")";
        }
    }
}

TEST(GemmKernels, EveryInstructionSetHasEveryFunction) {
  ASSERT_FALSE(available_kernels().empty());
  for (const GemmKernels& kernels : available_kernels()) {
    EXPECT_FALSE(kernels.name.empty());
    EXPECT_NE(kernels.for_bf16.gemm, nullptr) << kernels.name;
    EXPECT_NE(kernels.for_bf16.pack_b, nullptr) << kernels.name;
    EXPECT_NE(kernels.for_bf16.pack_b_transposed, nullptr) << kernels.name;
    EXPECT_NE(kernels.for_float.gemm, nullptr) << kernels.name;
    EXPECT_NE(kernels.for_float.pack_b, nullptr) << kernels.name;
    EXPECT_NE(kernels.for_float.pack_b_transposed, nullptr) << kernels.name;
  }
  RecordProperty("isas", static_cast<int>(available_kernels().size()));
}

}  // namespace
}  // namespace longspan::ops::cpu
