// Row operations, linear layers and rotary embedding on a device, against the reference.
#include "device/devices.h"
#include "gdn_case.h"
#include "rope_case.h"

namespace longspan::ops::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

double tolerance(DType dtype) { return dtype == DType::kF32 ? 2e-6 : 6e-4; }

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

// Rows in whole 16-byte words take a kernel of their own, all others the plain one. More rows than blocks:
// one takes several.
TEST(DeviceRmsNorm, AgreesWithReference) {
  constexpr Index kRows = 7;
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const NormKind kind : {NormKind::kZeroCentered, NormKind::kRoundThenScale})
        for (const Index n : {1, 3, 64, 65, 200, 517, 1024})
          for (const bool add : {false, true})
            for (const Index padding : {0, 3}) {
              const bool misaligned = padding > 0;
              const TestTensor delta = random_rows(dtype, kRows, n, padding, misaligned),
                               x = random_rows(dtype, kRows, n);
              const TestTensor x_got = copy_of(x, padding, misaligned), x_want = copy_of(x, 0, false);
              const TestTensor got(dtype, {kRows, n}, padding, misaligned), want(dtype, {kRows, n});
              TestTensor weight(DType::kF32, {n}, 0, misaligned);
              weight.fill(normal);
              RmsNorm args{.x = x_got.view(), .weight = weight.view(), .kind = kind, .out = got.view()};
              if (add) args.delta = delta.view();
              device->rms_norm(args);
              args.x = x_want.view();
              args.out = want.view();
              reference().rms_norm(args);
              EXPECT_LT(relative_error(got.values(), want.values()), tolerance(dtype))
                  << device->name() << " " << dtype_name(dtype) << " n " << n << " add " << add;
              EXPECT_EQ(x_got.values(), x_want.values());
            }
}

// The residual of float16 activations is float32: it passes 65504, where float16 ends.
TEST(DeviceRmsNorm, AFloat32ResidualHoldsWhatFloat16CouldNot) {
  for (StagedBackend* device : devices())
    for (const NormKind kind : {NormKind::kZeroCentered, NormKind::kRoundThenScale})
      for (const Index n : {1, 65, 200, 1024, 9000})
        for (const Index padding : {0, 3}) {
          TestTensor x(DType::kF32, {3, n}), delta(DType::kF16, {3, n}, padding, padding > 0);
          x.fill([] { return 1e5f * normal(); });
          delta.fill([] { return std::clamp(3e4f * normal(), -6e4f, 6e4f); });
          TestTensor weight(DType::kF32, {n});
          weight.fill(normal);
          const TestTensor x_got = copy_of(x, padding, padding > 0), x_want = copy_of(x, 0, false);
          const TestTensor got(DType::kF16, {3, n}, padding, padding > 0), want(DType::kF16, {3, n});
          RmsNorm args{.x = x_got.view(),
                       .delta = delta.view(),
                       .weight = weight.view(),
                       .kind = kind,
                       .out = got.view()};
          device->rms_norm(args);
          args.x = x_want.view();
          args.out = want.view();
          reference().rms_norm(args);
          EXPECT_LT(relative_error(got.values(), want.values()), tolerance(DType::kF16)) << "n " << n;
          EXPECT_EQ(x_got.values(), x_want.values());
        }
}

TEST(DeviceRmsNorm, OutMayBeItsInput) {
  for (StagedBackend* device : devices()) {
    const TestTensor x = random_rows(DType::kBF16, 4, 300), in_place = copy_of(x, 0, false);
    TestTensor weight(DType::kF32, {300});
    weight.fill(normal);
    const TestTensor out(DType::kBF16, {4, 300});
    device->rms_norm({.x = x.view(), .weight = weight.view(), .out = out.view()});
    device->rms_norm({.x = in_place.view(), .weight = weight.view(), .out = in_place.view()});
    EXPECT_EQ(out.values(), in_place.values());
  }
}

TEST(DeviceSwiGlu, AgreesWithReference) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index n : {1, 5, 16, 104, 517}) {
        const bool words = n % 8 == 0;
        TestTensor gate_up(dtype, {5, 2 * n}, words ? 0 : 3, !words);
        gate_up.fill([] { return 8.0f * normal(); });
        const TestTensor got(dtype, {5, n}, words ? 0 : 1, !words), want(dtype, {5, n});
        device->swiglu({.gate_up = gate_up.view(), .out = got.view()});
        reference().swiglu({.gate_up = gate_up.view(), .out = want.view()});
        EXPECT_LT(relative_error(got.values(), want.values()), tolerance(dtype)) << dtype_name(dtype) << n;
      }
}

// Decode rows multiply and activate in one kernel; the bits are those of two.
TEST(DeviceMatmulSwiGlu, IsMatmulThenSwiGlu) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const auto& [rows, n, k] :
           {std::array<Index, 3>{1, 9, 40}, {3, 16, 64}, {16, 5, 33}, {20, 8, 600}})
        for (const Index num_decode_rows : {Index{-1}, Index{0}, rows / 2, rows}) {
          const TestTensor x = random_rows(dtype, rows, k), weight = random_rows(DType::kF32, 2 * n, k);
          const auto packed = device->pack({&weight.view(), 1}, dtype);
          const TestTensor gate_up(dtype, {rows, 2 * n}), got(dtype, {rows, n}), want(dtype, {rows, n});
          device->matmul_swiglu({.x = x.view(),
                                 .num_decode_rows = num_decode_rows,
                                 .weight = packed.get(),
                                 .gate_up = gate_up.view(),
                                 .out = got.view()});
          device->matmul({.x = x.view(),
                          .num_decode_rows = num_decode_rows,
                          .weight = packed.get(),
                          .out = gate_up.view()});
          device->swiglu({.gate_up = gate_up.view(), .out = want.view()});
          EXPECT_EQ(got.values(), want.values())
              << dtype_name(dtype) << " " << rows << " x " << n << " x " << k;
        }
}

std::vector<int32_t> list(const TestTensor& tensor) {
  const auto* values = tensor.view().as<int32_t>();
  return {values, values + tensor.view().num_elements()};
}

TEST(DeviceBestColumn, IsTheFirstOfTheLargestOrNone) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index n : {1, 7, 1000, 20000}) {
        const TestTensor x = random_rows(dtype, 7, n, n == 7 ? 3 : 0, n == 7);
        const auto set = [&](Index row, Index column, float value) {
          dispatch_dtype(dtype,
                         [&]<class T>() { x.view().as<T>()[row * x.view().stride(0) + column] = T(value); });
        };
        set(0, n / 2, 50);
        set(1, n - 1, 50), set(1, n / 3, 50);
        set(2, n / 2, kNan);
        set(3, n / 2, kInf);
        for (Index j = 0; j < n; ++j) set(4, j, -kInf), set(5, j, j == n / 3 ? -5.0f : -kInf);
        set(6, n / 2, -kInf);
        const TestTensor got = ints(std::vector<int32_t>(7)), want = ints(std::vector<int32_t>(7));
        device->best_column({.x = x.view(), .out = got.view()});
        reference().best_column({.x = x.view(), .out = want.view()});
        EXPECT_EQ(list(got), list(want)) << dtype_name(dtype) << n;
        EXPECT_EQ(list(got)[1], n / 3);
        EXPECT_EQ(list(got)[2], -1);
        EXPECT_EQ(list(got)[3], -1);
        EXPECT_EQ(list(got)[4], -1);
        EXPECT_EQ(list(got)[5], n / 3);
      }
}

// The arrays of one step of `num_seqs` sequences, at random positions of tables with holes.
struct StepArrays {
  StepArrays(Index num_seqs, Index num_axes, Index max_pages, Index page_tokens)
      : page_tokens_(page_tokens),
        tokens_(DType::kI32, {num_seqs}),
        table_(DType::kI32, {num_seqs, max_pages}),
        seq_lens_(DType::kI32, {num_seqs}),
        token_ids_(DType::kI32, {num_seqs}),
        positions_(DType::kI32, {num_axes, num_seqs}),
        starts_(DType::kI32, {num_seqs + 1}),
        logit_rows_(DType::kI32, {num_seqs}),
        slots_(DType::kI32, {num_seqs}) {
    std::mt19937 random(3);
    const auto draw = [&](const TestTensor& to, Index from, Index end) {
      for (Index i = 0; i < to.view().num_elements(); ++i)
        to.view().as<int32_t>()[i] = static_cast<int32_t>(from + random() % (end - from));
    };
    draw(tokens_, -1, 1000);
    draw(table_, -1, 5000);
    draw(seq_lens_, 0, (max_pages + 1) * page_tokens);
  }
  AdvanceInputs args() const {
    return {.tokens = tokens_.view(),
            .block_table = table_.view(),
            .page_tokens = page_tokens_,
            .token_ids = token_ids_.view(),
            .positions = positions_.view(),
            .query_start_loc = starts_.view(),
            .seq_lens = seq_lens_.view(),
            .logit_rows = logit_rows_.view(),
            .slots = slots_.view()};
  }
  std::vector<std::vector<int32_t>> all() const {
    return {list(token_ids_), list(positions_),  list(starts_),
            list(seq_lens_),  list(logit_rows_), list(slots_)};
  }

  Index page_tokens_;
  TestTensor tokens_, table_, seq_lens_, token_ids_, positions_, starts_, logit_rows_, slots_;
};

TEST(DeviceAdvanceInputs, IsTheHostsStepToTheInteger) {
  for (StagedBackend* device : devices())
    for (const Index num_seqs : {1, 3, 64, 150})
      for (const Index num_axes : {1, 3})
        for (const Index page_tokens : {16, 784}) {
          const StepArrays got(num_seqs, num_axes, 5, page_tokens), want(num_seqs, num_axes, 5, page_tokens);
          for (int step = 0; step < 3; ++step) {  // each goes on from the last
            device->advance_inputs(got.args());
            reference().advance_inputs(want.args());
            ASSERT_EQ(got.all(), want.all()) << num_seqs << " sequences, " << num_axes << " axes, " << step;
          }
        }
}

TEST(DeviceAdvanceInputs, OneSequenceGoesOverAPagesEnd) {
  for (StagedBackend* device : devices()) {
    const StepArrays step(1, 3, 2, 16);
    *step.tokens_.view().as<int32_t>() = 77;
    *step.seq_lens_.view().as<int32_t>() = 15;
    step.table_.view().as<int32_t>()[0] = 9;
    step.table_.view().as<int32_t>()[1] = 4;
    const std::vector<std::vector<int32_t>> in_first = {{77}, {15, 15, 15}, {0, 1}, {16}, {0}, {9 * 16 + 15}};
    const std::vector<std::vector<int32_t>> in_second = {{77}, {16, 16, 16}, {0, 1}, {17}, {0}, {4 * 16}};
    device->advance_inputs(step.args());
    EXPECT_EQ(step.all(), in_first);
    device->advance_inputs(step.args());
    EXPECT_EQ(step.all(), in_second);
  }
}

// What was recorded reads what its tensors hold when it is replayed, and gives the bits of the calls.
TEST(DeviceRecording, ReplaysWithChangedInputs) {
  for (StagedBackend* staged : devices()) {
    Backend& device = staged->device();
    constexpr Index kRows = 2, kN = 96, kK = 64;
    const TestTensor weight = random_rows(DType::kF32, kN, kK);
    const auto packed = device.pack({&weight.view(), 1}, DType::kBF16);
    const Buffer x = device.allocate(DType::kBF16, {kRows, kK}),
                 y = device.allocate(DType::kBF16, {kRows, kN});
    const Buffer normed = device.allocate(DType::kBF16, {kRows, kN}),
                 best = device.allocate(DType::kI32, {kRows});
    const Buffer ones = device.allocate(DType::kF32, {kN});
    device.zero(ones.data(), ones.size_bytes());
    const auto calls = [&] {
      device.matmul({.x = x.view(), .num_decode_rows = kRows, .weight = packed.get(), .out = y.view()});
      device.rms_norm({.x = y.view(), .weight = ones.view(), .out = normed.view()});
      device.best_column({.x = normed.view(), .out = best.view()});
    };
    const auto read = [&] {
      std::vector<uint16_t> values(kRows * kN);
      std::vector<int32_t> columns(kRows);
      device.download(values.data(), normed.data(), normed.size_bytes());
      device.download(columns.data(), best.data(), best.size_bytes());
      return std::pair(values, columns);
    };
    calls();
    std::unique_ptr<Recording> recording = device.record(calls);
    ASSERT_NE(recording, nullptr) << device.name();
    for (int round = 0; round < 3; ++round) {
      const TestTensor input = random_rows(DType::kBF16, kRows, kK);
      device.upload(x.data(), input.view().data, x.size_bytes());
      calls();
      const auto expected = read();
      device.zero(normed.data(), normed.size_bytes());
      ASSERT_TRUE(recording->replay());
      EXPECT_EQ(read(), expected);
    }
    recording = nullptr;
    calls();
    device.synchronize();
  }
}

TEST(DeviceSwiGlu, SaturatesWithoutNan) {
  const std::vector<float> gates = {-1e30f, -1000, -104, -89, -20, 0, 20, 88, 100, 1e30f};
  const auto n = static_cast<Index>(gates.size());
  TestTensor gate_up(DType::kF32, {1, 2 * n});
  Index i = 0;
  gate_up.fill([&] { return i < n ? gates[static_cast<size_t>(i++)] : 1.0f; });
  for (StagedBackend* device : devices()) {
    const TestTensor out(DType::kF32, {1, n});
    device->swiglu({.gate_up = gate_up.view(), .out = out.view()});
    const std::vector<float> got = out.values();
    for (size_t j = 0; j < gates.size(); ++j) {
      const double exact = gates[j] / (1 + std::exp(-static_cast<double>(gates[j])));
      EXPECT_NEAR(got[j], exact, std::abs(exact) * 1e-6 + 1e-36) << gates[j];
    }
  }
}

TEST(DeviceGather, CopiesRowsExactly) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index n : {33, 64}) {
        const TestTensor x = random_rows(dtype, 9, n, n % 2 == 1 ? 3 : 0, n % 2 == 1);
        const TestTensor rows = ints({8, 0, 3, 3, 7});
        const TestTensor got(dtype, {5, n}, n % 2, n % 2 == 1), want(dtype, {5, n});
        device->gather_rows({.x = x.view(), .rows = rows.view(), .out = got.view()});
        reference().gather_rows({.x = x.view(), .rows = rows.view(), .out = want.view()});
        EXPECT_EQ(got.values(), want.values());
      }
}

TEST(DeviceEmbed, ReadsPackedRows) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const Index n : {33, 64}) {
        const TestTensor table = random_rows(DType::kF32, 9, n, 2);
        const TestTensor ids = ints({8, 0, 3, 3, 7});
        const TestTensor got(dtype, {5, n}), want(dtype, {5, n});
        const auto packed = device->pack({&table.view(), 1}, dtype);
        const auto plain = reference().pack({&table.view(), 1}, dtype);
        device->embed({.ids = ids.view(), .table = packed.get(), .out = got.view()});
        reference().embed({.ids = ids.view(), .table = plain.get(), .out = want.view()});
        EXPECT_EQ(got.values(), want.values());
        if (dtype != DType::kF16) continue;
        const TestTensor wide(DType::kF32, {5, n});  // the residual
        device->embed({.ids = ids.view(), .table = packed.get(), .out = wide.view()});
        EXPECT_EQ(wide.values(), want.values());
      }
}

// Rows of x by a weight, on the device.
std::vector<float> product(StagedBackend& device, const TensorView& x, const Weight& weight,
                           const TensorView& bias, Index num_decode_rows) {
  const TestTensor out(x.dtype, {x.dim(0), weight.out_features}, 1, true);
  device.matmul(
      {.x = x, .num_decode_rows = num_decode_rows, .weight = &weight, .bias = bias, .out = out.view()});
  return out.values();
}

TEST(DeviceMatmul, AgreesWithReferenceForAnyShape) {
  const Index shapes[][3] = {{1, 1, 1},    {1, 17, 3},    {2, 31, 33},  {5, 100, 64},
                             {8, 40, 520}, {16, 97, 65},  {17, 33, 70}, {33, 20, 31},
                             {64, 96, 96}, {70, 129, 67}, {3, 40, 2100}};
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes)
      for (const auto& [m, n, k] : shapes)
        for (const bool has_bias : {false, true}) {
          const TestTensor x = random_rows(dtype, m, k, k % 8 == 0 ? 0 : 3, k % 2 == 1);
          const TestTensor weight = random_rows(dtype, n, k);
          const TestTensor bias = random_rows(DType::kF32, 1, n);
          const TensorView bias_view =
              has_bias ? TensorView(bias.view().data, DType::kF32, {n}) : TensorView();
          const auto packed = device->pack({&weight.view(), 1}, dtype);
          const auto plain = reference().pack({&weight.view(), 1}, dtype);
          const TestTensor want(dtype, {m, n});
          reference().matmul({.x = x.view(), .weight = plain.get(), .bias = bias_view, .out = want.view()});
          for (const Index num_decode_rows : {Index{-1}, has_bias ? m : 0})
            EXPECT_LT(relative_error(product(*device, x.view(), *packed, bias_view, num_decode_rows),
                                     want.values()),
                      tolerance(dtype))
                << device->name() << " " << dtype_name(dtype) << " " << m << " x " << n << " x " << k
                << " decode " << num_decode_rows;
        }
}

TEST(DeviceMatmul, StacksAndConvertsParts) {
  for (StagedBackend* device : devices())
    for (const DType dtype : kDTypes) {
      const TestTensor a = random_rows(DType::kF32, 5, 40), b = random_rows(DType::kBF16, 7, 40, 3);
      const TensorView parts[] = {a.view(), b.view()};
      const auto packed = device->pack(parts, dtype), plain = reference().pack(parts, dtype);
      EXPECT_EQ(packed->out_features, 12);
      EXPECT_EQ(packed->in_features, 40);
      const TestTensor x = random_rows(dtype, 3, 40), want(dtype, {3, 12});
      reference().matmul({.x = x.view(), .weight = plain.get(), .out = want.view()});
      EXPECT_LT(relative_error(product(*device, x.view(), *packed, {}, -1), want.values()), tolerance(dtype));
    }
}

// The host's numbers (model/weight_source.cc), so that a seed means one model everywhere.
float host_normal(uint64_t x, float deviation) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  const uint64_t bits = x ^ (x >> 31);
  const auto sum =
      static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  return (sum / 65535.0f - 2.0f) * 1.7320508f * deviation;
}

TEST(DeviceRandomWeight, DrawsTheHostsNumbers) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Index n = 45;
      const RandomRows parts[] = {{12345, 3}, {uint64_t{1} << 63, 4}};
      const auto weight = device->pack_random(parts, n, DType::kBF16, dtype, 0.02f);
      const TestTensor ids = ints({0, 1, 2, 3, 4, 5, 6}), out(dtype, {7, n});
      device->embed({.ids = ids.view(), .table = weight.get(), .out = out.view()});
      const std::vector<float> got = out.values();
      for (Index i = 0; i < 7 * n; ++i) {
        const uint64_t at = static_cast<uint64_t>(i < 3 * n ? i : i - 3 * n) + parts[i < 3 * n ? 0 : 1].key;
        ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<float>(bf16(host_normal(at, 0.02f)))) << i;
      }
    }
}

// One tree of sums for decode rows, one for prompt rows, however many there are.
TEST(DeviceMatmul, RowsDoNotDependOnTheirNumber) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Index m = 40, n = 70, k = 640;
      const TestTensor x = random_rows(dtype, m, k), weight = random_rows(dtype, n, k);
      const auto packed = device->pack({&weight.view(), 1}, dtype);
      for (const bool decode : {true, false}) {
        const std::vector<float> all = product(*device, x.view(), *packed, {}, decode ? m : 0);
        for (const Index count : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33}) {
          const std::vector<float> part =
              product(*device, x.view().rows(m - count, count), *packed, {}, decode ? count : 0);
          EXPECT_TRUE(
              std::equal(part.begin(), part.end(), all.end() - static_cast<std::ptrdiff_t>(part.size())))
              << device->name() << " " << count << " rows, decode " << decode;
        }
        // Decode rows in front of prompt rows change neither.
        if (decode) continue;
        const std::vector<float> mixed = product(*device, x.view(), *packed, {}, 5);
        const std::vector<float> few = product(*device, x.view().rows(0, 5), *packed, {}, 5);
        EXPECT_TRUE(std::equal(few.begin(), few.end(), mixed.begin()));
        EXPECT_TRUE(std::equal(mixed.begin() + 5 * n, mixed.end(), all.begin() + 5 * n));
      }
    }
}

TEST(DeviceMatmul, NanStaysInItsRow) {
  for (StagedBackend* device : devices())
    for (const Index m : {4, 36}) {
      const Index n = 40, k = 50;
      TestTensor x = random_rows(DType::kBF16, m, k);
      x.view().as<bf16>()[k + 49] = bf16(NAN);
      const TestTensor weight = random_rows(DType::kBF16, n, k);
      const auto packed = device->pack({&weight.view(), 1}, DType::kBF16);
      const std::vector<float> out = product(*device, x.view(), *packed, {}, -1);
      for (Index i = 0; i < m; ++i)
        for (Index j = 0; j < n; ++j) ASSERT_EQ(std::isnan(out[static_cast<size_t>(i * n + j)]), i == 1);
    }
}

TEST(DeviceRopeAngles, AreAccurateUpToAMillion) {
  const TestTensor positions = ints({0, 1, 2, 63, 4095, 131071, 999999, 1048575});
  const Index half = 33;
  TestTensor inv_freq(DType::kF32, {half});
  Index j = 0;
  inv_freq.fill([&] { return static_cast<float>(std::pow(1e7, -static_cast<double>(j++) / half)); });
  for (StagedBackend* device : devices()) {
    const TestTensor got(DType::kF32, {8, 2 * half}), want(DType::kF32, {8, 2 * half});
    device->rope_angles({positions.view(), inv_freq.view(), got.view()});
    reference().rope_angles({positions.view(), inv_freq.view(), want.view()});
    const std::vector<float> a = got.values(), b = want.values();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1.2e-7) << i;
  }
}

void expect_rope_like_reference(StagedBackend& device, const RopeShape& shape) {
  const RopeProblem problem(shape), plain(shape);
  device.qk_rope_write(problem.args());
  reference().qk_rope_write(plain.args());
  const std::vector<float> got = problem.memory(), want = plain.memory();
  const float step = shape.dtype == DType::kF32 ? 2e-6f : 1.0f / 128;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], step * std::max(std::abs(want[i]), 0.25f))
        << device.name() << " element " << i << ", dim " << shape.head_dim << ", " << dtype_name(shape.dtype);
}

TEST(DeviceQkRopeWrite, AgreesWithReference) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Index head_dim : {2, 20, 64, 256})
        for (const Index rotary_dim : {Index{2}, head_dim / 4 * 2, head_dim})
          expect_rope_like_reference(
              *device, {.dtype = dtype, .num_tokens = 11, .head_dim = head_dim, .rotary_dim = rotary_dim});
      for (const Index misalignment : {0, 1, 7})
        for (const NormKind kind : {NormKind::kZeroCentered, NormKind::kRoundThenScale})
          for (const bool normed : {false, true})
            expect_rope_like_reference(*device, {.dtype = dtype,
                                                 .num_tokens = 11,
                                                 .normed = normed,
                                                 .norm_kind = kind,
                                                 .misalignment = misalignment});
    }
}

}  // namespace
}  // namespace longspan::ops::test
