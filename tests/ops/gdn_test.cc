// Gated delta rule on the CPU against the token-by-token reference, and what must hold to the bit.
#include "gdn_case.h"
#include "simd_targets.h"

namespace longspan::ops {
namespace {

// bf16 outputs are rounded once on both sides; fp32 states differ by the order of sums only.
double output_tolerance(DType dtype) { return dtype == DType::kF32 ? 2e-5 : 2e-3; }
double state_tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 5e-5; }

void expect_close_to_reference(const GdnShape& shape) {
  const GdnCase c(shape);
  const GdnResult got = run_cpu_delta(c);
  const GdnResult want = run_reference_delta(c);
  EXPECT_LT(relative_error(got.out, want.out), output_tolerance(shape.dtype));
  for (Index seq_idx = 0; seq_idx < c.num_seqs(); ++seq_idx)
    EXPECT_LT(
        relative_error(got.states.s_values(c.page_of(seq_idx)), want.states.s_values(c.page_of(seq_idx))),
        state_tolerance(shape.dtype))
        << "sequence " << seq_idx;
  // Pages nobody owns are not touched.
  EXPECT_EQ(got.states.page_bytes(0), c.pool.page_bytes(0));
  EXPECT_EQ(got.states.page_bytes(2 * c.num_seqs() + 1), c.pool.page_bytes(2 * c.num_seqs() + 1));
}

TEST(GatedDelta, AgreesAtEveryLength) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (Index length = 1; length <= 200; length += length < 70 ? 1 : 13) {
      SCOPED_TRACE(fmt::format("{} length {}", dtype_name(dtype), length));
      expect_close_to_reference(
          {.dtype = dtype, .num_k_heads = 1, .k_dim = 16, .v_dim = 16, .seqs = {{0, length}}});
    }
}

TEST(GatedDelta, AgreesOverLongPrompts) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    expect_close_to_reference({.dtype = dtype, .k_dim = 64, .v_dim = 64, .seqs = {{0, 517}}});
}

TEST(GatedDelta, MapsHeadsInGroups) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Index heads_per_key : {1, 2, 3, 4})
      for (const int num_threads : {1, 16}) {  // one task a key head, one task a value head
        SCOPED_TRACE(fmt::format("{} ratio {} threads {}", dtype_name(dtype), heads_per_key, num_threads));
        const GdnCase c({.dtype = dtype,
                         .num_k_heads = 3,
                         .heads_per_key = heads_per_key,
                         .seqs = {{0, 1}, {0, 70}},
                         .num_decode_seqs = 1});
        EXPECT_LT(relative_error(run_cpu_delta(c, num_threads).out, run_reference_delta(c).out),
                  output_tolerance(dtype));
      }
}

TEST(GatedDelta, TakesAnyHeadDims) {
  const std::vector<std::pair<Index, Index>> dims = {{16, 16}, {32, 64}, {64, 32}, {128, 128}, {128, 96},
                                                     {17, 33}, {40, 5},  {1, 1},   {100, 130}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const auto& [k_dim, v_dim] : dims) {
      SCOPED_TRACE(fmt::format("{} {} x {}", dtype_name(dtype), k_dim, v_dim));
      expect_close_to_reference({.dtype = dtype,
                                 .k_dim = k_dim,
                                 .v_dim = v_dim,
                                 .seqs = {{5, 1}, {0, 67}, {64, 33}},
                                 .num_decode_seqs = 1});
    }
}

TEST(GatedDelta, MixesDecodeRowsAndPromptsOnEverySimdTarget) {
  for_each_simd_target([] {
    for (const DType dtype : {DType::kF32, DType::kBF16})
      expect_close_to_reference(
          {.dtype = dtype,
           .heads_per_key = 2,
           .seqs = {{700, 1}, {0, 1}, {63, 1}, {0, 130}, {64, 64}, {100, 29}, {37, 200}, {0, 1}},
           .num_decode_seqs = 3});
  });
}

TEST(GatedDelta, ReadsStridedAndMisalignedViews) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GdnShape shape{.dtype = dtype, .k_dim = 48, .v_dim = 40, .seqs = {{9, 1}, {0, 90}}, .num_decode_seqs = 1};
    const GdnResult aligned = run_cpu_delta(GdnCase(shape));
    shape.padding = 7;
    shape.misaligned = true;
    const GdnResult misaligned = run_cpu_delta(GdnCase(shape));
    EXPECT_EQ(aligned.out, misaligned.out);
    EXPECT_EQ(aligned.states.memory(), misaligned.states.memory());
    expect_close_to_reference(shape);
  }
}

// The bundled model reaches G = -1820 within a chunk: e^28.4 a token. Others keep nearly everything.
TEST(GatedDelta, SurvivesExtremeDecays) {
  struct Extreme {
    float a_mean, a_spread, a_log;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Extreme e : {Extreme{20, 8, 0.3f}, Extreme{28, 3, 1}, Extreme{-12, 2, -6}, Extreme{0, 15, 0},
                            Extreme{90, 1, 3}, Extreme{-90, 1, -3}, Extreme{-3, 6, 2}}) {
      SCOPED_TRACE(fmt::format("{} a {} +- {} a_log {}", dtype_name(dtype), e.a_mean, e.a_spread, e.a_log));
      expect_close_to_reference({.dtype = dtype,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .seqs = {{77, 1}, {0, 150}, {20, 150}},
                                 .num_decode_seqs = 1,
                                 .a_mean = e.a_mean,
                                 .a_spread = e.a_spread,
                                 .a_log = e.a_log});
    }
}

// A steep start of each chunk takes G far down; what follows lives on small differences of large sums.
TEST(GatedDelta, KeepsSmallDifferencesOfLargeDecays) {
  GdnCase c({.k_dim = 64, .v_dim = 64, .seqs = {{0, 128}}});
  Index next = 0;
  c.a.fill([&] { return next++ / 2 % 64 < 16 ? 110.0f : -7.0f; });  // two heads a row
  EXPECT_LT(relative_error(run_cpu_delta(c).out, run_reference_delta(c).out), output_tolerance(DType::kF32));
}

TEST(GatedDelta, RecurrenceAndChunksAgree) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GdnShape shape{.dtype = dtype, .heads_per_key = 2, .k_dim = 128, .v_dim = 128, .seqs = {{300, 1}}};
    const GdnResult chunk = run_cpu_delta(GdnCase(shape));
    shape.num_decode_seqs = 1;
    const GdnResult recurrence = run_cpu_delta(GdnCase(shape));
    EXPECT_LT(relative_error(chunk.out, recurrence.out), output_tolerance(dtype));
  }
}

// Rows begin .. begin + count of one long prompt as a step of its own.
void run_step(const GdnCase& c, StatePool& states, const TensorView& out, Index begin, Index count,
              int num_threads) {
  ThreadPool pool(num_threads);
  cpu::Scratch scratch(num_threads);
  GatedDelta args = c.gated_delta(states, out);
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.z, &args.a, &args.b, &args.out})
    *view = view->rows(begin, count);
  const TestTensor starts = ints({0, static_cast<int32_t>(count)});
  const TestTensor lens = ints({static_cast<int32_t>(begin + count)});
  args.seqs = {starts.view(), lens.view(), 1, 0};
  cpu::gated_delta({pool, scratch}, args);
}

TEST(GatedDelta, BitsDoNotDependOnStepsOrThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GdnCase c({.dtype = dtype, .heads_per_key = 3, .k_dim = 64, .v_dim = 64, .seqs = {{0, 333}}});
    const GdnResult whole = run_cpu_delta(c, 1);
    for (const int num_threads : {1, 2, 3})
      for (const std::vector<Index>& steps :
           {std::vector<Index>{333}, {64, 64, 64, 64, 64, 13}, {128, 205}, {256, 64, 13}}) {
        StatePool states(c.pool);
        const TestTensor out = like(c.out, c.shape);
        Index begin = 0;
        for (const Index count : steps) {
          run_step(c, states, out.view(), begin, count, num_threads);
          begin += count;
        }
        EXPECT_EQ(out.values(), whole.out);
        EXPECT_EQ(states.memory(), whole.states.memory());
      }
  }
}

// After an odd prompt tail the chunks return to the absolute grid.
TEST(GatedDelta, GridIsAbsolute) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GdnCase c({.dtype = dtype, .seqs = {{0, 300}}});
    std::vector<std::vector<float>> outs;
    for (const std::vector<Index>& steps : {std::vector<Index>{37, 263}, {37, 27, 64, 172}, {37, 91, 172}}) {
      StatePool states(c.pool);
      const TestTensor out = like(c.out, c.shape);
      Index begin = 0;
      for (const Index count : steps) {
        run_step(c, states, out.view(), begin, count, 2);
        begin += count;
      }
      outs.push_back(out.values());
    }
    EXPECT_EQ(outs[0], outs[1]);
    EXPECT_EQ(outs[0], outs[2]);
  }
}

TEST(GatedDelta, BitsDoNotDependOnBatchMates) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GdnShape shape{.dtype = dtype,
                         .heads_per_key = 2,
                         .seqs = {{40, 1}, {3, 1}, {0, 100}, {64, 70}},
                         .num_decode_seqs = 2};
    const GdnCase batch(shape);
    const GdnResult together = run_cpu_delta(batch);
    Index first_row = 0;
    for (Index seq_idx = 0; seq_idx < 4; ++seq_idx) {
      const Index count = shape.seqs[static_cast<size_t>(seq_idx)].num_rows;
      StatePool states(batch.pool);
      const TestTensor out = like(batch.out, shape);
      GatedDelta args = batch.gated_delta(states, out.view());
      const TestTensor starts =
          ints({static_cast<int32_t>(first_row), static_cast<int32_t>(first_row + count)});
      args.seqs = {starts.view(), batch.seq_lens.view().rows(seq_idx, 1), 1, seq_idx < 2 ? 1 : 0};
      args.state_pages = batch.state_pages.view().rows(seq_idx, 1);
      ThreadPool pool(2);
      cpu::Scratch scratch(2);
      cpu::gated_delta({pool, scratch}, args);
      const Index row = args.out.dim(1) * args.out.dim(2);
      const std::vector<float> alone = out.values();
      EXPECT_TRUE(std::equal(alone.begin() + first_row * row, alone.begin() + (first_row + count) * row,
                             together.out.begin() + first_row * row));
      EXPECT_EQ(states.page_bytes(batch.page_of(seq_idx)),
                together.states.page_bytes(batch.page_of(seq_idx)));
      first_row += count;
    }
  }
}

TEST(GatedDelta, CheckpointIsTheStateOfARunStoppedThere) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const GdnShape shape{.dtype = dtype, .heads_per_key = 2, .seqs = {{0, 300}}};
    GdnCase c(shape);
    c.checkpoints = {{0, 128, 0}, {0, 256, 1}};
    const GdnResult result = run_cpu_delta(c);
    for (const StateCheckpoint& checkpoint : c.checkpoints) {
      StatePool stopped(c.pool);
      const TestTensor out = like(c.out, shape);
      run_step(c, stopped, out.view(), 0, checkpoint.num_tokens, 2);
      EXPECT_EQ(result.states.s_values(checkpoint.page), stopped.s_values(c.page_of(0)));
    }
  }
}

TEST(GatedDelta, DecodeWritesCheckpointsToo) {
  GdnCase c({.seqs = {{63, 1}}, .num_decode_seqs = 1});
  c.checkpoints = {{0, 64, 0}};
  const GdnResult result = run_cpu_delta(c);
  EXPECT_EQ(result.states.s_values(0), result.states.s_values(c.page_of(0)));
}

}  // namespace
}  // namespace longspan::ops
