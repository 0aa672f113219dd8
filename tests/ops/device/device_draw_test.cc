// Draws on a device are the host's: the same token of the same row and state, whatever shares the call.
#include "device/devices.h"
#include "gdn_case.h"
#include "ops/draw.h"

namespace longspan::ops::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::mt19937 draw_rng(9);

// Random rows; every third element one of few values, so that there are ties, every tenth out of the
// question.
TestTensor random_logits(DType dtype, Index num_rows, Index n, bool misaligned) {
  TestTensor logits(dtype, {num_rows, n}, misaligned ? 3 : 0, misaligned);
  logits.fill([&] {
    const float value = std::normal_distribution<float>(0, 4)(draw_rng);
    return draw_rng() % 10 == 0 ? -kInf : draw_rng() % 3 == 0 ? std::round(value) : value;
  });
  return logits;
}

DrawRow random_row() {
  return {.scale = static_cast<float>(std::exp2(kDistanceBits)) * (draw_rng() % 2 == 0 ? 0.4f : 2.0f),
          .top_k = draw_rng() % 2 == 0 ? 1 + static_cast<uint32_t>(draw_rng() % 40) : 0,
          .max_distance = draw_rng() % 3 == 0 ? uint32_t{2} << kDistanceBits : kFar,
          .top_p = draw_rng() % 2 == 0 ? uint64_t{draw_rng()} << 32 : ~uint64_t{0},
          .state = uint64_t{draw_rng()} << 32 | draw_rng()};
}

TensorView view_of(std::vector<DrawRow>& rows) {
  return TensorView(rows.data(), DType::kU8,
                    {static_cast<Index>(rows.size()), static_cast<Index>(sizeof(DrawRow))});
}

std::vector<int32_t> draws(Backend& backend, const TensorView& x, std::vector<DrawRow>& rows) {
  std::vector<int32_t> out(rows.size());
  backend.draw({.x = x,
                .rows = view_of(rows),
                .out = TensorView(out.data(), DType::kI32, {static_cast<Index>(out.size())})});
  return out;
}

TEST(DeviceDraw, IsTheHosts) {
  for (StagedBackend* device : devices())
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (const Index n : {1, 7, 1000, 5003}) {
        const TestTensor x = random_logits(dtype, 6, n, n == 7 || n == 5003);
        dispatch_dtype(dtype, [&]<class T>() {
          for (Index i = 0; i < 6; ++i) x.view().as<T>()[i * x.view().stride(0) + n / 2] = T(1.0f);
        });
        std::vector<DrawRow> got(6), want;
        std::generate(got.begin(), got.end(), random_row);
        want = got;
        for (int step = 0; step < 2; ++step)  // the second goes on from the state of the first
          EXPECT_EQ(draws(*device, x.view(), got), draws(reference(), x.view(), want))
              << device->name() << " " << dtype_name(dtype) << " " << n;
        EXPECT_EQ(got, want);
      }
}

constexpr Index kLong = 9000;  // a row whose values are counted

// Values that 16 bits tell apart and distances do not, and both zeros: what is counted apart is one tie.
TEST(DeviceDraw, OfLongRowsIsTheHosts) {
  for (StagedBackend* device : devices())
    for (const auto& [dtype, n] : {std::pair<DType, Index>{DType::kBF16, 20008}, {DType::kF16, kLong}}) {
      TestTensor x = random_logits(dtype, 8, n, false);
      dispatch_dtype(dtype, [&]<class T>() {
        constexpr float kTiny[] = {0.0f, -0.0f, 1e-7f, -1e-7f, 3e-7f, 1e-30f, -2e-38f, 6e-8f};
        for (Index j = 0; j < n; ++j)
          for (Index i = 0; i < 2; ++i)
            if (j % 100 != 7) x.view().as<T>()[i * x.view().stride(0) + j] = T(kTiny[draw_rng() % 8]);
      });
      for (int step = 0; step < 3; ++step) {
        std::vector<DrawRow> got(8), want;
        std::generate(got.begin(), got.end(), random_row);
        if (step == 0) got[2] = {.scale = std::numeric_limits<float>::max(), .top_k = 1};
        if (step == 1) got[3].top_k = static_cast<uint32_t>(n) + 1;
        want = got;
        EXPECT_EQ(draws(*device, x.view(), got), draws(reference(), x.view(), want))
            << device->name() << " " << dtype_name(dtype) << " " << n;
        EXPECT_EQ(got, want);
      }
    }
}

TEST(DeviceDraw, DoesNotDependOnTheBatch) {
  for (StagedBackend* device : devices())
    for (const Index n : {Index{2000}, kLong}) {
      const TestTensor x = random_logits(DType::kBF16, 5, n, false);
      std::vector<DrawRow> all(5);
      std::generate(all.begin(), all.end(), random_row);
      std::vector<DrawRow> last = {all.back()};
      EXPECT_EQ(draws(*device, x.view(), all).back(), draws(*device, x.view().rows(4, 1), last).front());
    }
}

TEST(DeviceDraw, TiesAndEdges) {
  for (StagedBackend* device : devices())
    for (const auto& [dtype, n] : {std::pair<DType, Index>{DType::kF32, 40}, {DType::kBF16, kLong}}) {
      TestTensor x(dtype, {6, n});
      Index at = 0;
      x.fill([&] {
        const Index row = at / n, column = at++ % n;
        switch (row) {
          case 0:
            return 2.0f;  // all are the best: top_k takes the first
          case 1:
            return column == 30 || column == 20 ? 2.0f : 1.0f;  // greedy: the first of the best
          case 2:
            return column == 25 ? 1.0f : -kInf;  // one candidate
          case 3:
            return column == 3 ? std::nanf("") : 1.0f;
          case 4:
            return column == 3 ? kInf : 1.0f;
          default:
            return -kInf;
        }
      });
      const auto scale = static_cast<float>(std::exp2(kDistanceBits));
      std::vector<DrawRow> rows(6, {.scale = scale, .state = 77});
      rows[0].top_k = 1;
      rows[1] = {.scale = std::numeric_limits<float>::max(), .top_k = 1};
      rows[2].top_k = 50;
      EXPECT_EQ(draws(*device, x.view(), rows), (std::vector<int32_t>{0, 20, 25, -1, -1, -1}));
      // More asked for than there are, all of them alike: each is drawn now and then.
      std::vector<DrawRow> equal(1, {.scale = scale, .top_k = 100});
      std::vector<int32_t> seen;
      for (int i = 0; i < 20; ++i) seen.push_back(draws(*device, x.view().rows(0, 1), equal).front());
      std::sort(seen.begin(), seen.end());
      EXPECT_GT(seen.back() - seen.front(), 20);
      EXPECT_LT(seen.back(), std::min<Index>(n, 100));
    }
}

}  // namespace
}  // namespace longspan::ops::test
