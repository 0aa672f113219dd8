// Causal convolution on the CPU against the reference, and its history.
#include "gdn_case.h"
#include "simd_targets.h"

namespace longspan::ops {
namespace {

double tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-6 : 5e-4; }

void expect_close_to_reference(const GdnShape& shape) {
  const GdnCase c(shape);
  const GdnResult got = run_cpu_conv(c);
  const GdnResult want = run_reference_conv(c);
  EXPECT_LT(relative_error(got.out, want.out), tolerance(shape.dtype));
  EXPECT_EQ(got.states.memory(), want.states.memory());  // the history holds inputs: exact
}

TEST(CausalConv, AgreesAtEveryLengthAndKernel) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const Index conv_kernel : {2, 3, 4, 5, 8})
      for (const Index length : {1, 2, 3, 4, 5, 6, 7, 8, 63, 64, 127, 128, 129, 200, 517}) {
        SCOPED_TRACE(fmt::format("{} kernel {} length {}", dtype_name(dtype), conv_kernel, length));
        expect_close_to_reference({.dtype = dtype,
                                   .num_k_heads = 1,
                                   .k_dim = 16,
                                   .v_dim = 17,
                                   .conv_kernel = conv_kernel,
                                   .seqs = {{0, length}, {9, length}}});
      }
}

TEST(CausalConv, MixesDecodeRowsAndPromptsOnEverySimdTarget) {
  for_each_simd_target([] {
    for (const DType dtype : {DType::kF32, DType::kBF16})
      expect_close_to_reference({.dtype = dtype,
                                 .num_k_heads = 4,
                                 .k_dim = 128,
                                 .v_dim = 128,
                                 .seqs = {{700, 1}, {0, 1}, {2, 1}, {0, 130}, {64, 2}, {1, 200}, {0, 1}},
                                 .num_decode_seqs = 3,
                                 .padding = 3,
                                 .misaligned = true});
  });
}

TEST(CausalConv, BitsDoNotDependOnStepsOrThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GdnCase c({.dtype = dtype, .seqs = {{0, 150}}});
    const GdnResult whole = run_cpu_conv(c, 1);
    for (const int num_threads : {1, 2, 3})
      for (const std::vector<Index>& steps :
           {std::vector<Index>{150}, {64, 64, 22}, {1, 2, 1, 140, 1, 1, 4}}) {
        StatePool states(c.pool);
        const TestTensor out = like(c.conv_out, c.shape);
        Index begin = 0;
        for (const Index count : steps) {
          ThreadPool pool(num_threads);
          cpu::Scratch scratch(num_threads);
          CausalConv args = c.causal_conv(states, out.view().rows(begin, count));
          args.x = args.x.rows(begin, count);
          const TestTensor starts = ints({0, static_cast<int32_t>(count)});
          const TestTensor lens = ints({static_cast<int32_t>(begin + count)});
          args.seqs = {starts.view(), lens.view(), 1, count == 1 ? 1 : 0};
          cpu::causal_conv({pool, scratch}, args);
          begin += count;
        }
        EXPECT_EQ(out.values(), whole.out);
        EXPECT_EQ(states.memory(), whole.states.memory());
      }
  }
}

TEST(CausalConv, WritesCheckpoints) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GdnCase c({.dtype = dtype, .seqs = {{63, 1}, {0, 200}, {62, 2}}, .num_decode_seqs = 1});
    c.checkpoints = {{0, 64, 0}, {1, 64, 1}, {1, 192, 3}, {2, 64, 7}};
    const GdnResult got = run_cpu_conv(c);
    const GdnResult want = run_reference_conv(c);
    EXPECT_EQ(got.states.memory(), want.states.memory());
  }
}

TEST(CausalConv, LargeInputsStayFinite) {
  GdnCase c({.seqs = {{0, 20}}});
  c.x.fill([&] { return c.normal(0.0f, 200.0f); });
  const GdnResult got = run_cpu_conv(c);
  for (const float value : got.out) ASSERT_TRUE(std::isfinite(value));
  EXPECT_LT(relative_error(got.out, run_reference_conv(c).out), 1e-6);
}

}  // namespace
}  // namespace longspan::ops
