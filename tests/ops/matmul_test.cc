// Linear layers and embedding of the CPU backend against a double-precision oracle and against themselves: a
// row's bits depend on nothing but the row and the weight. CTest runs this once an instruction set.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/cpu/backend.h"
#include "ops/cpu/gemm_kernels.h"
#include "support/guarded.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* pointer = std::malloc(size)) return pointer;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }

namespace longspan::ops {
namespace {

bool wanted_isa_exists() {
  const char* wanted = std::getenv("LONGSPAN_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return true;
  for (const cpu::GemmKernels& kernels : cpu::available_kernels())
    if (kernels.name == wanted) return true;
  return false;
}

// [rows, cols] of random numbers in a wider, misaligned memory: rows start one element in and `gap` apart.
// What lies between the rows is NaN.
template <class T>
class Matrix {
 public:
  Matrix(Index rows, Index cols, Index gap = 0, uint32_t seed = 1)
      : memory_(static_cast<size_t>(1 + rows * (cols + gap)), T(std::numeric_limits<float>::quiet_NaN())),
        view_(memory_.data() + 1, dtype_of<T>::value, {rows, cols}) {
    view_.strides[0] = cols + gap;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < cols; ++j) at(i, j) = T(normal(random));
  }
  T& at(Index i, Index j) { return view_.template as<T>()[i * view_.stride(0) + j]; }
  float value(Index i, Index j) const {
    return static_cast<float>(view_.template as<T>()[i * view_.stride(0) + j]);
  }
  const TensorView& view() const { return view_; }
  bool gaps_untouched() const {
    for (Index i = 0; i < view_.dim(0); ++i)
      for (Index j = view_.dim(1); j < view_.stride(0); ++j)
        if (!std::isnan(value(i, j))) return false;
    return true;
  }

 private:
  std::vector<T> memory_;
  TensorView view_;
};

template <class T>
class MatmulTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!wanted_isa_exists()) GTEST_SKIP() << "not on this machine: " << std::getenv("LONGSPAN_CPU_ISA");
    backend_ = cpu::make_backend({.num_threads = 2});
  }

  std::unique_ptr<Weight> pack(const Matrix<T>& weight) {
    return backend_->pack({&weight.view(), 1}, dtype_of<T>::value);
  }

  // Largest error a rounding to T and `magnitude` (the sum of absolute products) of fp32 sums allow.
  static double tolerance(double want, double magnitude) {
    return (std::is_same_v<T, float> ? 0 : std::abs(want) * 0x1p-8) + 2e-6 * magnitude + 1e-30;
  }

  std::unique_ptr<Backend> backend_;
};

using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(MatmulTest, Types);

TYPED_TEST(MatmulTest, MatchesTheOracleForAnyShape) {
  using T = TypeParam;
  const Index shapes[][3] = {{1, 1, 1},    {1, 17, 3},    {2, 31, 33},   {5, 100, 64},  {16, 97, 65},
                             {17, 33, 70}, {32, 48, 32},  {33, 20, 31},  {34, 1, 5},    {47, 65, 64},
                             {64, 96, 96}, {70, 129, 67}, {97, 700, 40}, {3, 40, 4099}, {40, 35, 4099}};
  for (const auto& [m, n, k] : shapes)
    for (const bool has_bias : {false, true}) {
      const Matrix<T> x(m, k, /*gap=*/3, 1), weight(n, k, 0, 2);
      Matrix<float> bias(1, n, 0, 3);
      Matrix<T> out(m, n, /*gap=*/5, 4);
      const TensorView bias_view(bias.view().data, DType::kF32, {n});
      const auto packed = this->pack(weight);
      this->backend_->matmul({.x = x.view(),
                              .weight = packed.get(),
                              .bias = has_bias ? bias_view : TensorView(),
                              .out = out.view()});
      for (Index i = 0; i < m; ++i)
        for (Index j = 0; j < n; ++j) {
          double want = has_bias ? bias.value(0, j) : 0.0;
          double magnitude = std::abs(want);
          for (Index kk = 0; kk < k; ++kk) {
            const double term =
                static_cast<double>(x.value(i, kk)) * static_cast<double>(weight.value(j, kk));
            want += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(out.value(i, j), want, this->tolerance(want, magnitude))
              << "m " << m << " n " << n << " k " << k << " at (" << i << ", " << j << ")";
        }
      ASSERT_TRUE(out.gaps_untouched()) << "m " << m << " n " << n;
    }
}

// Rows computed alone, among others, and by any number of threads are the same bits. 1000 x 4500 also takes
// the way of outputs larger than the caches, when rows are whole lines.
TYPED_TEST(MatmulTest, ARowHasTheSameBitsInAnyCompany) {
  using T = TypeParam;
  const Index n = 4512, k = 75;
  const Matrix<T> x(1000, k, 0, 1), weight(n, k, 0, 2);
  const Matrix<float> bias_row(1, n, 0, 3);
  const TensorView bias(bias_row.view().data, DType::kF32, {n});
  const Buffer all(dtype_of<T>::value, {1000, n}), some(dtype_of<T>::value, {1000, n});
  const size_t row_bytes = static_cast<size_t>(n) * sizeof(T);
  const auto packed = this->pack(weight);
  this->backend_->matmul({.x = x.view(), .weight = packed.get(), .bias = bias, .out = all.view()});

  std::vector<Index> counts = {257, 1000};
  for (Index m = 1; m <= 70; ++m) counts.push_back(m);
  for (const int num_threads : {1, 2, 3}) {
    const auto backend = cpu::make_backend({.num_threads = num_threads});
    const auto own_weight = backend->pack({&weight.view(), 1}, dtype_of<T>::value);
    for (const Index m : counts) {
      const Index first = (1000 - m) / 2;
      backend->matmul({.x = x.view().rows(first, m),
                       .weight = own_weight.get(),
                       .bias = bias,
                       .out = some.view().rows(0, m)});
      ASSERT_EQ(std::memcmp(some.data(),
                            static_cast<std::byte*>(all.data()) + static_cast<size_t>(first) * row_bytes,
                            static_cast<size_t>(m) * row_bytes),
                0)
          << m << " rows, " << num_threads << " threads";
    }
  }
}

TYPED_TEST(MatmulTest, PartsStackAlongNAndConvert) {
  using T = TypeParam;
  const Index k = 37;
  const Matrix<bf16> a(5, k, 2, 1);
  const Matrix<f16> b(30, k, 1, 2);
  const Matrix<float> c(16, k, 0, 3);
  const TensorView parts[] = {a.view(), b.view(), c.view()};
  const auto packed = this->backend_->pack(parts, dtype_of<T>::value);
  ASSERT_EQ(packed->out_features, 51);
  ASSERT_EQ(packed->in_features, k);
  // Row j of the weight is what x = the j-th unit vector picks: read it back through embed, which is exact.
  std::vector<int32_t> ids(51);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  Matrix<T> out(51, k, 4);
  this->backend_->embed(
      {.ids = TensorView(ids.data(), DType::kI32, {51}), .table = packed.get(), .out = out.view()});
  for (Index j = 0; j < k; ++j) {
    for (Index i = 0; i < 5; ++i) ASSERT_EQ(out.value(i, j), static_cast<float>(T(a.value(i, j))));
    for (Index i = 0; i < 30; ++i) ASSERT_EQ(out.value(5 + i, j), static_cast<float>(T(b.value(i, j))));
    for (Index i = 0; i < 16; ++i) ASSERT_EQ(out.value(35 + i, j), static_cast<float>(T(c.value(i, j))));
  }
  EXPECT_TRUE(out.gaps_untouched());
}

TYPED_TEST(MatmulTest, EmbedGivesTheSourceRows) {
  using T = TypeParam;
  const Index vocab = 101, hidden = 66;
  const Matrix<T> table(vocab, hidden);
  const auto packed = this->pack(table);
  std::vector<int32_t> ids = {100, 0, 17, 17, 16, 15, 99, 31, 32};
  const Index count = static_cast<Index>(ids.size());
  const Matrix<T> out(count, hidden, 1);
  this->backend_->embed(
      {.ids = TensorView(ids.data(), DType::kI32, {count}), .table = packed.get(), .out = out.view()});
  for (Index i = 0; i < count; ++i)
    for (Index j = 0; j < hidden; ++j)
      ASSERT_EQ(out.value(i, j), table.value(ids[static_cast<size_t>(i)], j)) << "row " << i;
}

TYPED_TEST(MatmulTest, IsExactWhenEverySumIs) {
  using T = TypeParam;
  const Index k = 96;
  for (const Index m : {3, 40}) {
    Matrix<T> x(m, k), weight(35, k), out(m, 35);
    for (Index kk = 0; kk < k; ++kk) {
      for (Index i = 0; i < m; ++i) x.at(i, kk) = T(static_cast<float>((i + kk) % 3 - 1));
      for (Index j = 0; j < 35; ++j) weight.at(j, kk) = T(static_cast<float>((j * kk) % 5 - 2));
    }
    const auto packed = this->pack(weight);
    this->backend_->matmul({.x = x.view(), .weight = packed.get(), .out = out.view()});
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < 35; ++j) {
        Index want = 0;
        for (Index kk = 0; kk < k; ++kk) want += ((i + kk) % 3 - 1) * ((j * kk) % 5 - 2);
        ASSERT_EQ(out.value(i, j), static_cast<float>(want));
      }
  }
}

TYPED_TEST(MatmulTest, NanAndInfinityStayInTheirRow) {
  using T = TypeParam;
  const Index n = 40, k = 50;
  for (const Index m : {4, 36}) {
    Matrix<T> x(m, k), weight(n, k), out(m, n);
    for (Index j = 0; j < n; ++j) weight.at(j, 49) = T(1.0f);
    x.at(1, 49) = T(std::numeric_limits<float>::quiet_NaN());
    x.at(3, 49) = T(-std::numeric_limits<float>::infinity());
    const auto packed = this->pack(weight);
    this->backend_->matmul({.x = x.view(), .weight = packed.get(), .out = out.view()});
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) {
        if (i == 1)
          ASSERT_TRUE(std::isnan(out.value(i, j)));
        else if (i == 3)
          ASSERT_EQ(out.value(i, j), -std::numeric_limits<float>::infinity());
        else
          ASSERT_TRUE(std::isfinite(out.value(i, j)));
      }
  }
}

// x and out end where their memory does.
TYPED_TEST(MatmulTest, TouchesNothingOutsideItsOperands) {
  using T = TypeParam;
  for (const Index m : {1, 17, 33, 49, 130})
    for (const Index n : {1, 33, 200})
      for (const Index k : {1, 31, 70}) {
        const Guarded<T> x(static_cast<size_t>(m * k)), out(static_cast<size_t>(m * n));
        const Matrix<T> weight(n, k);
        const auto packed = this->pack(weight);
        this->backend_->matmul({.x = TensorView(x.data(), dtype_of<T>::value, {m, k}),
                                .weight = packed.get(),
                                .out = TensorView(out.data(), dtype_of<T>::value, {m, n})});
      }
}

TYPED_TEST(MatmulTest, NoRowsIsNoWork) {
  using T = TypeParam;
  const Matrix<T> weight(20, 30), x(1, 30), out(1, 20);
  const auto packed = this->pack(weight);
  this->backend_->matmul({.x = x.view().rows(0, 0), .weight = packed.get(), .out = out.view().rows(0, 0)});
}

TYPED_TEST(MatmulTest, WeightsTakeTheirOwnSizeAndPadding) {
  using T = TypeParam;
  const Matrix<T> weight(100, 64);
  EXPECT_EQ(this->pack(weight)->size_bytes(), 112 * 64 * sizeof(T));  // 100 rows in seven panels of 16
}

// Fused or one after the other, whatever the number of rows: the same bits.
TYPED_TEST(MatmulTest, SwiGluBehindTheProductChangesNoBit) {
  using T = TypeParam;
  for (const Index m : {0, 1, 5, 32, 33, 64, 130, 1100})
    for (const Index n : {1, 16, 20, 48, 225})
      for (const Index k : {3, 33, 64}) {
        const Matrix<T> x(m, k, 3, 1), gate(n, k, 1, 2), up(n, k, 0, 3);
        const Matrix<T> gate_up(m, 2 * n, 0, 4), want(m, n, 0, 5), got(m, n, 5, 6);
        const TensorView parts[] = {gate.view(), up.view()};
        const auto stacked = this->backend_->pack(parts, dtype_of<T>::value);
        const auto in_turns = this->backend_->pack_gate_up(gate.view(), up.view(), dtype_of<T>::value);
        ASSERT_EQ(in_turns->out_features, 2 * n);
        this->backend_->matmul({.x = x.view(), .weight = stacked.get(), .out = gate_up.view()});
        this->backend_->swiglu({.gate_up = gate_up.view(), .out = want.view()});
        this->backend_->matmul_swiglu(
            {.x = x.view(), .weight = in_turns.get(), .gate_up = gate_up.view(), .out = got.view()});
        for (Index i = 0; i < m; ++i)
          for (Index j = 0; j < n; ++j)
            ASSERT_EQ(got.value(i, j), want.value(i, j))
                << "m " << m << " n " << n << " k " << k << " at (" << i << ", " << j << ")";
        ASSERT_TRUE(got.gaps_untouched());
      }
}

TYPED_TEST(MatmulTest, AllocatesNothingAfterTheFirstCall) {
  using T = TypeParam;
  for (const Index m : {1, 33, 200}) {
    const Matrix<T> x(m, 130), weight(150, 130), out(m, 150);
    const auto packed = this->pack(weight);
    const Matmul args{.x = x.view(), .weight = packed.get(), .out = out.view()};
    this->backend_->matmul(args);
    const int64_t before = num_allocations.load();
    this->backend_->matmul(args);
    EXPECT_EQ(num_allocations.load(), before) << m << " rows";
  }
}

}  // namespace
}  // namespace longspan::ops
