// Row operations on the CPU against the reference, and what must hold to the bit.
#include "gdn_case.h"
#include "simd_targets.h"

namespace longspan::ops {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

double row_tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-6 : 5e-4; }

class CpuRows {
 public:
  explicit CpuRows(int num_threads) : pool_(num_threads), scratch_(num_threads) {}
  operator cpu::Context() { return {pool_, scratch_}; }

 private:
  ThreadPool pool_;
  cpu::Scratch scratch_;
};

std::mt19937 rng(7);
float normal() { return std::normal_distribution<float>()(rng); }

TestTensor random_rows(DType dtype, Index num_rows, Index n, Index padding = 0, bool misaligned = false) {
  TestTensor tensor(dtype, {num_rows, n}, padding, misaligned);
  tensor.fill(normal);
  return tensor;
}

TestTensor copy_of(const TestTensor& from, Index padding, bool misaligned) {
  TestTensor to(from.view().dtype, from.view().shape, padding, misaligned);
  const std::vector<float> values = from.values();
  auto next = values.begin();
  to.fill([&] { return *next++; });
  return to;
}

struct NormRun {
  std::vector<float> out, x;
};

template <class Run>
NormRun run_norm(const Run& run, const TestTensor& x, const TestTensor* delta, const TestTensor& weight,
                 NormKind kind, Index padding, bool misaligned) {
  const TestTensor x_copy = copy_of(x, padding, misaligned);
  const TestTensor out(x.view().dtype, x.view().shape, padding, misaligned);
  RmsNorm args{.x = x_copy.view(), .weight = weight.view(), .kind = kind, .out = out.view()};
  if (delta != nullptr) args.delta = delta->view();
  run(args);
  return {out.values(), x_copy.values()};
}

TEST(RmsNorm, AgreesWithReferenceOnEverySimdTarget) {
  CpuRows context(2);
  const auto reference = reference::make_backend();
  for_each_simd_target([&] {
    for (const DType dtype : kDTypes)
      for (const NormKind kind : {NormKind::kZeroCentered, NormKind::kRoundThenScale})
        for (const Index n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 128, 200, 517, 1024, 5120})
          for (const bool add : {false, true}) {
            SCOPED_TRACE(fmt::format("{} n {} add {}", dtype_name(dtype), n, add));
            const TestTensor x = random_rows(dtype, 5, n), delta = random_rows(dtype, 5, n, 3, true);
            TestTensor weight(DType::kF32, {n}, 0, true);
            weight.fill(normal);
            const TestTensor* added = add ? &delta : nullptr;
            const auto got = run_norm([&](const RmsNorm& args) { cpu::rms_norm(context, args); }, x, added,
                                      weight, kind, 5, true);
            const auto want = run_norm([&](const RmsNorm& args) { reference->rms_norm(args); }, x, added,
                                       weight, kind, 0, false);
            EXPECT_LT(relative_error(got.out, want.out), row_tolerance(dtype));
            EXPECT_EQ(got.x, want.x);  // the residual sum rounds the same way everywhere
          }
  });
}

TEST(RmsNorm, RowsDoNotDependOnNeighboursThreadsOrAlignment) {
  for (const DType dtype : kDTypes) {
    const TestTensor x = random_rows(dtype, 300, 517);
    TestTensor weight(DType::kF32, {517});
    weight.fill(normal);
    CpuRows one(1), three(3);
    const auto run = [&](CpuRows& context, const TensorView& rows) {
      const TestTensor out(dtype, rows.shape);
      cpu::rms_norm(context, {.x = rows, .weight = weight.view(), .out = out.view()});
      return out.values();
    };
    const std::vector<float> all = run(one, x.view());
    EXPECT_EQ(all, run(three, x.view()));
    EXPECT_EQ(all, run(three, copy_of(x, 3, true).view()));
    const std::vector<float> row = run(three, x.view().rows(123, 1));
    EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + 123 * 517));
  }
}

TEST(RmsNorm, OutMayBeItsInput) {
  CpuRows context(2);
  const TestTensor x = random_rows(DType::kBF16, 4, 100);
  const TestTensor in_place = copy_of(x, 0, false);
  TestTensor weight(DType::kF32, {100});
  weight.fill(normal);
  const TestTensor out(DType::kBF16, {4, 100});
  cpu::rms_norm(context, {.x = x.view(), .weight = weight.view(), .out = out.view()});
  cpu::rms_norm(context, {.x = in_place.view(), .weight = weight.view(), .out = in_place.view()});
  EXPECT_EQ(out.values(), in_place.values());
}

TEST(SwiGlu, AgreesWithReferenceOnEverySimdTarget) {
  CpuRows context(2);
  const auto reference = reference::make_backend();
  for_each_simd_target([&] {
    for (const DType dtype : kDTypes)
      for (const Index n : {1, 5, 8, 15, 16, 17, 64, 100, 517, 3584}) {
        TestTensor gate_up(dtype, {40, 2 * n}, 3, true);
        gate_up.fill([] { return 8.0f * normal(); });
        const TestTensor got(dtype, {40, n}, 1, true), want(dtype, {40, n});
        cpu::swiglu(context, {.gate_up = gate_up.view(), .out = got.view()});
        reference->swiglu({.gate_up = gate_up.view(), .out = want.view()});
        EXPECT_LT(relative_error(got.values(), want.values()), row_tolerance(dtype))
            << dtype_name(dtype) << " n " << n;
      }
  });
}

TEST(SwiGlu, SaturatesWithoutNanOnEverySimdTarget) {
  CpuRows context(1);
  const std::vector<float> gates = {-1e30f, -1000, -104, -100, -89, -88, -20, 0, 20, 88, 100, 1e30f, NAN};
  const auto n = static_cast<Index>(gates.size());
  TestTensor gate_up(DType::kF32, {1, 2 * n});
  Index i = 0;
  gate_up.fill([&] { return i < n ? gates[static_cast<size_t>(i++)] : 1.0f; });
  for_each_simd_target([&] {
    const TestTensor out(DType::kF32, {1, n});
    cpu::swiglu(context, {.gate_up = gate_up.view(), .out = out.view()});
    const std::vector<float> got = out.values();
    for (size_t j = 0; j + 1 < gates.size(); ++j) {
      const double exact = gates[j] / (1 + std::exp(-static_cast<double>(gates[j])));
      EXPECT_NEAR(got[j], exact, std::abs(exact) * 1e-6 + 1e-36) << gates[j];
    }
    EXPECT_TRUE(std::isnan(got.back()));
  });
}

TEST(GatherRows, CopiesRows) {
  CpuRows context(2);
  for (const DType dtype : kDTypes) {
    const TestTensor x = random_rows(dtype, 9, 33, 4, true);
    const TestTensor rows = ints({8, 0, 3, 3, 7});
    const TestTensor got(dtype, {5, 33}, 2, true);
    cpu::gather_rows(context, {.x = x.view(), .rows = rows.view(), .out = got.view()});
    const std::vector<float> source = x.values(), values = got.values();
    for (size_t i = 0; i < 5; ++i)
      for (size_t j = 0; j < 33; ++j)
        EXPECT_EQ(values[i * 33 + j], source[static_cast<size_t>(rows.view().as<int32_t>()[i]) * 33 + j]);
  }
}

}  // namespace
}  // namespace longspan::ops
