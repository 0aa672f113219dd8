// Convolution and gated delta rule on a device, against the reference token by token, and what must hold to
// the bit.
#include "device/devices.h"
#include "gdn_case.h"

namespace longspan::ops::test {
namespace {

double conv_tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-6 : 5e-4; }
double output_tolerance(DType dtype) { return dtype == DType::kF32 ? 2e-5 : 2e-3; }
double state_tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 5e-5; }

GdnResult run_conv(Backend& device, const GdnCase& c) {
  GdnResult result{{}, c.pool};
  const TestTensor out = like(c.conv_out, c.shape);
  device.causal_conv(c.causal_conv(result.states, out.view()));
  result.out = out.values();
  return result;
}

GdnResult run_delta(Backend& device, const GdnCase& c) {
  GdnResult result{{}, c.pool};
  const TestTensor out = like(c.out, c.shape);
  device.gated_delta(c.gated_delta(result.states, out.view()));
  result.out = out.values();
  return result;
}

void expect_conv_like_reference(StagedBackend& device, const GdnShape& shape) {
  const GdnCase c(shape);
  const GdnResult got = run_conv(device, c), want = run_reference_conv(c);
  EXPECT_LT(relative_error(got.out, want.out), conv_tolerance(shape.dtype)) << device.name();
  EXPECT_EQ(got.states.memory(), want.states.memory());
}

void expect_delta_like_reference(StagedBackend& device, const GdnShape& shape) {
  const GdnCase c(shape);
  const GdnResult got = run_delta(device, c), want = run_reference_delta(c);
  EXPECT_LT(relative_error(got.out, want.out), output_tolerance(shape.dtype))
      << device.name() << " " << dtype_name(shape.dtype) << " " << shape.k_dim << " x " << shape.v_dim;
  for (Index seq_idx = 0; seq_idx < c.num_seqs(); ++seq_idx)
    EXPECT_LT(
        relative_error(got.states.s_values(c.page_of(seq_idx)), want.states.s_values(c.page_of(seq_idx))),
        state_tolerance(shape.dtype))
        << "sequence " << seq_idx;
  EXPECT_EQ(got.states.page_bytes(0), c.pool.page_bytes(0));  // nobody's
  EXPECT_EQ(got.states.page_bytes(2 * c.num_seqs() + 1), c.pool.page_bytes(2 * c.num_seqs() + 1));
}

// Channels in whole 16-byte words take a kernel of their own with the models' kernel of 4.
TEST(DeviceConv, AgreesAtEveryLengthAndKernel) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (const Index conv_kernel : {2, 4, 5})
        for (const Index v_dim : {16, 17})
          for (const Index length : {1, 2, 3, 4, 9, 70})
            expect_conv_like_reference(*device, {.dtype = dtype,
                                                 .num_k_heads = 1,
                                                 .k_dim = 16,
                                                 .v_dim = v_dim,
                                                 .conv_kernel = conv_kernel,
                                                 .seqs = {{0, length}, {9, length}}});
}

TEST(DeviceConv, MixesDecodeRowsAndPromptsInWords) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      expect_conv_like_reference(*device,
                                 {.dtype = dtype,
                                  .seqs = {{700, 1}, {0, 1}, {2, 1}, {0, 130}, {64, 2}, {1, 20}, {0, 1}},
                                  .num_decode_seqs = 3,
                                  .padding = 8});
}

TEST(DeviceConv, MixesDecodeRowsAndPrompts) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      expect_conv_like_reference(*device,
                                 {.dtype = dtype,
                                  .k_dim = 64,
                                  .v_dim = 64,
                                  .seqs = {{700, 1}, {0, 1}, {2, 1}, {0, 130}, {64, 2}, {1, 20}, {0, 1}},
                                  .num_decode_seqs = 3,
                                  .padding = 3,
                                  .misaligned = true});
}

TEST(DeviceConv, WritesCheckpoints) {
  for (StagedBackend* device : devices()) {
    GdnCase c({.dtype = DType::kBF16, .seqs = {{63, 1}, {0, 200}, {62, 2}}, .num_decode_seqs = 1});
    c.checkpoints = {{0, 64, 0}, {1, 64, 1}, {1, 192, 3}, {2, 64, 7}};
    EXPECT_EQ(run_conv(*device, c).states.memory(), run_reference_conv(c).states.memory());
  }
}

TEST(DeviceGatedDelta, AgreesAtEveryLength) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const Index length : {1, 2, 3, 16, 63, 64, 65, 127, 128, 130, 200})
        expect_delta_like_reference(
            *device, {.dtype = dtype, .num_k_heads = 1, .k_dim = 16, .v_dim = 16, .seqs = {{0, length}}});
}

TEST(DeviceGatedDelta, TakesAnyHeadDims) {
  const std::vector<std::pair<Index, Index>> dims = {{32, 64}, {64, 32}, {128, 128}, {17, 33},
                                                     {40, 5},  {1, 1},   {100, 130}};
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (const auto& [k_dim, v_dim] : dims)
        expect_delta_like_reference(*device, {.dtype = dtype,
                                              .num_k_heads = 1,
                                              .k_dim = k_dim,
                                              .v_dim = v_dim,
                                              .seqs = {{5, 1}, {0, 67}, {64, 33}},
                                              .num_decode_seqs = 1});
}

TEST(DeviceGatedDelta, MapsHeadsInGroupsAndMixesSequences) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const Index heads_per_key : {1, 3})
        expect_delta_like_reference(
            *device, {.dtype = dtype,
                      .heads_per_key = heads_per_key,
                      .seqs = {{700, 1}, {0, 1}, {63, 1}, {0, 130}, {64, 64}, {100, 29}, {37, 200}, {0, 1}},
                      .num_decode_seqs = 3});
}

TEST(DeviceGatedDelta, WorksThroughMoreCellsThanItsWorkspaceHolds) {
  for (StagedBackend* device : devices())
    expect_delta_like_reference(
        *device, {.num_k_heads = 1, .k_dim = 16, .v_dim = 16, .seqs = {{3, 1500}, {0, 100}, {10, 900}}});
}

TEST(DeviceGatedDelta, ReadsStridedAndMisalignedViews) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      expect_delta_like_reference(*device, {.dtype = dtype,
                                            .k_dim = 48,
                                            .v_dim = 40,
                                            .seqs = {{9, 1}, {0, 90}},
                                            .num_decode_seqs = 1,
                                            .padding = 7,
                                            .misaligned = true});
}

TEST(DeviceGatedDelta, SurvivesExtremeDecays) {
  struct Extreme {
    float a_mean, a_spread, a_log;
  };
  for (StagedBackend* device : devices())
    for (const Extreme e : {Extreme{20, 8, 0.3f}, Extreme{28, 3, 1}, Extreme{-12, 2, -6}, Extreme{90, 1, 3},
                            Extreme{-90, 1, -3}})
      expect_delta_like_reference(*device, {.seqs = {{77, 1}, {0, 150}, {20, 150}},
                                            .num_decode_seqs = 1,
                                            .a_mean = e.a_mean,
                                            .a_spread = e.a_spread,
                                            .a_log = e.a_log});
}

// bf16 heads of 128 x 128 take matrix units where there are some.
constexpr Index kMatrixDim = 128;

TEST(DeviceGatedDelta, AgreesAtEveryLengthOnMatrixUnits) {
  for (StagedBackend* device : devices())
    for (const Index length : {1, 2, 16, 17, 33, 63, 64, 65, 200})
      expect_delta_like_reference(*device, {.dtype = DType::kBF16,
                                            .num_k_heads = 1,
                                            .k_dim = kMatrixDim,
                                            .v_dim = kMatrixDim,
                                            .seqs = {{0, length}}});
}

TEST(DeviceGatedDelta, MapsHeadsAndMixesSequencesOnMatrixUnits) {
  for (StagedBackend* device : devices())
    expect_delta_like_reference(
        *device, {.dtype = DType::kBF16,
                  .heads_per_key = 3,
                  .k_dim = kMatrixDim,
                  .v_dim = kMatrixDim,
                  .seqs = {{700, 1}, {0, 1}, {63, 1}, {0, 130}, {64, 64}, {100, 29}, {37, 100}, {0, 1}},
                  .num_decode_seqs = 3,
                  .padding = 8});
}

TEST(DeviceGatedDelta, WorksThroughManyCellsOnMatrixUnits) {
  for (StagedBackend* device : devices())
    expect_delta_like_reference(*device, {.dtype = DType::kBF16,
                                          .num_k_heads = 1,
                                          .k_dim = kMatrixDim,
                                          .v_dim = kMatrixDim,
                                          .seqs = {{3, 3100}, {0, 100}, {10, 1500}}});
}

// Cells are copied whole; what lies behind a short one is another sequence's.
TEST(DeviceGatedDelta, ShortCellsDoNotMixInTheRowsBehindThem) {
  for (StagedBackend* device : devices()) {
    GdnCase c({.dtype = DType::kBF16,
               .num_k_heads = 1,
               .heads_per_key = 2,
               .k_dim = kMatrixDim,
               .v_dim = kMatrixDim,
               .seqs = {{0, 85}, {0, 60}}});
    const GdnResult want = run_delta(*device, c);
    const Index first = 85;
    for (TestTensor* tensor : {&c.q, &c.k, &c.v, &c.z}) {
      const TensorView rows = tensor->view().rows(first, 60);
      std::fill_n(rows.as<bf16>(), rows.num_elements(), bf16(std::numeric_limits<float>::quiet_NaN()));
    }
    const GdnResult got = run_delta(*device, c);
    const auto end = static_cast<std::ptrdiff_t>(first * c.out.view().num_elements() / c.out.view().dim(0));
    EXPECT_TRUE(std::equal(want.out.begin(), want.out.begin() + end, got.out.begin()));
    EXPECT_EQ(got.states.page_bytes(c.page_of(0)), want.states.page_bytes(c.page_of(0)));
    EXPECT_TRUE(std::isnan(got.out.back()));
  }
}

TEST(DeviceGatedDelta, SurvivesExtremeDecaysOnMatrixUnits) {
  struct Extreme {
    float a_mean, a_spread, a_log;
  };
  for (StagedBackend* device : devices())
    for (const Extreme e : {Extreme{20, 8, 0.3f}, Extreme{90, 1, 3}, Extreme{-90, 1, -3}})
      expect_delta_like_reference(*device, {.dtype = DType::kBF16,
                                            .num_k_heads = 1,
                                            .k_dim = kMatrixDim,
                                            .v_dim = kMatrixDim,
                                            .seqs = {{77, 1}, {0, 150}, {20, 90}},
                                            .num_decode_seqs = 1,
                                            .a_mean = e.a_mean,
                                            .a_spread = e.a_spread,
                                            .a_log = e.a_log});
}

TEST(DeviceGatedDelta, KeepsSmallDifferencesOfLargeDecays) {
  for (StagedBackend* device : devices()) {
    GdnCase c({.k_dim = 64, .v_dim = 64, .seqs = {{0, 128}}});
    Index next = 0;
    c.a.fill([&] { return next++ / 2 % 64 < 16 ? 110.0f : -7.0f; });
    EXPECT_LT(relative_error(run_delta(*device, c).out, run_reference_delta(c).out),
              output_tolerance(DType::kF32));
  }
}

// Rows of one long prompt in steps of `counts` tokens: outputs and state memory.
GdnResult in_steps(Backend& device, const GdnCase& c, const std::vector<Index>& counts) {
  GdnResult result{{}, c.pool};
  const TestTensor out = like(c.out, c.shape);
  Index begin = 0;
  for (const Index count : counts) {
    GatedDelta args = c.gated_delta(result.states, out.view());
    for (TensorView* view : {&args.q, &args.k, &args.v, &args.z, &args.a, &args.b, &args.out})
      *view = view->rows(begin, count);
    const TestTensor starts = ints({0, static_cast<int32_t>(count)});
    const TestTensor lens = ints({static_cast<int32_t>(begin + count)});
    args.seqs = {starts.view(), lens.view(), 1, 0};
    device.gated_delta(args);
    begin += count;
  }
  result.out = out.values();
  return result;
}

void expect_bits_independent_of_steps(StagedBackend& device, Index dim) {
  const GdnCase c({.dtype = DType::kBF16,
                   .num_k_heads = 1,
                   .heads_per_key = 2,
                   .k_dim = dim,
                   .v_dim = dim,
                   .seqs = {{0, 333}}});
  const GdnResult whole = in_steps(device, c, {333});
  for (const std::vector<Index>& steps :
       {std::vector<Index>{64, 64, 64, 64, 64, 13}, {128, 205}, {256, 64, 13}}) {
    const GdnResult got = in_steps(device, c, steps);
    EXPECT_EQ(got.out, whole.out);
    EXPECT_EQ(got.states.memory(), whole.states.memory());
  }
  const GdnResult tail = in_steps(device, c, {37, 296});  // back on the grid after an odd tail
  EXPECT_EQ(in_steps(device, c, {37, 27, 64, 205}).out, tail.out);
}

TEST(DeviceGatedDelta, BitsDoNotDependOnSteps) {
  for (StagedBackend* device : devices())
    for (const Index dim : {Index{32}, kMatrixDim}) expect_bits_independent_of_steps(*device, dim);
}

void expect_bits_independent_of_batch_mates(StagedBackend& device, GdnShape shape) {
  shape.seqs = {{40, 1}, {3, 1}, {0, 100}, {64, 70}};
  shape.num_decode_seqs = 2;
  const GdnCase batch(shape);
  const GdnResult together = run_delta(device, batch);
  Index first_row = 0;
  for (Index seq_idx = 0; seq_idx < 4; ++seq_idx) {
    const Index count = shape.seqs[static_cast<size_t>(seq_idx)].num_rows;
    StatePool states(batch.pool);
    const TestTensor out = like(batch.out, shape);
    GatedDelta args = batch.gated_delta(states, out.view());
    for (TensorView* view : {&args.q, &args.k, &args.v, &args.z, &args.a, &args.b, &args.out})
      *view = view->rows(first_row, count);
    const TestTensor starts = ints({0, static_cast<int32_t>(count)});
    args.seqs = {starts.view(), batch.seq_lens.view().rows(seq_idx, 1), 1, seq_idx < 2 ? 1 : 0};
    args.state_pages = batch.state_pages.view().rows(seq_idx, 1);
    device.gated_delta(args);
    const Index row = args.out.dim(1) * args.out.dim(2);
    const std::vector<float> alone = out.values();
    EXPECT_TRUE(std::equal(alone.begin() + first_row * row, alone.begin() + (first_row + count) * row,
                           together.out.begin() + first_row * row));
    EXPECT_EQ(states.page_bytes(batch.page_of(seq_idx)), together.states.page_bytes(batch.page_of(seq_idx)));
    first_row += count;
  }
}

TEST(DeviceGatedDelta, BitsDoNotDependOnBatchMates) {
  for (StagedBackend* device : devices()) {
    expect_bits_independent_of_batch_mates(*device, {.heads_per_key = 2});
    expect_bits_independent_of_batch_mates(*device, {.dtype = DType::kBF16,
                                                     .num_k_heads = 1,
                                                     .heads_per_key = 2,
                                                     .k_dim = kMatrixDim,
                                                     .v_dim = kMatrixDim});
  }
}

TEST(DeviceGatedDelta, CheckpointIsTheStateOfARunStoppedThere) {
  for (StagedBackend* device : devices()) {
    GdnCase c({.heads_per_key = 2, .seqs = {{0, 300}}});
    c.checkpoints = {{0, 128, 0}, {0, 256, 1}};
    const GdnResult result = run_delta(*device, c);
    c.checkpoints.clear();
    EXPECT_EQ(result.states.s_values(0), in_steps(*device, c, {128}).states.s_values(c.page_of(0)));
    EXPECT_EQ(result.states.s_values(1), in_steps(*device, c, {256}).states.s_values(c.page_of(0)));

    GdnCase matrix({.dtype = DType::kBF16,
                    .num_k_heads = 1,
                    .k_dim = kMatrixDim,
                    .v_dim = kMatrixDim,
                    .seqs = {{0, 150}}});
    matrix.checkpoints = {{0, 64, 0}, {0, 128, 1}};
    const GdnResult on_matrix_units = run_delta(*device, matrix);
    matrix.checkpoints.clear();
    EXPECT_EQ(on_matrix_units.states.s_values(0),
              in_steps(*device, matrix, {64}).states.s_values(matrix.page_of(0)));
    EXPECT_EQ(on_matrix_units.states.s_values(1),
              in_steps(*device, matrix, {128}).states.s_values(matrix.page_of(0)));

    GdnCase decode({.seqs = {{63, 1}}, .num_decode_seqs = 1});
    decode.checkpoints = {{0, 64, 0}};
    const GdnResult after = run_delta(*device, decode);
    EXPECT_EQ(after.states.s_values(0), after.states.s_values(decode.page_of(0)));
  }
}

}  // namespace
}  // namespace longspan::ops::test
