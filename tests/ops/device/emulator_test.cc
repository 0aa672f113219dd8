// The emulator proves itself on kernels that are broken on purpose: each must be caught, at wave 32 and 64,
// for many seeds; its repaired twin must pass.
#include "ops/device/emulator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/device/launch.h"
#include "ops/device/mma.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

using emulator::Findings;
using emulator::Kind;

constexpr int kNumSeeds = 20;

// Runs `kernel` on both devices under many seeds; every run must have the finding.
template <class Kernel>
void expect_caught(const Kernel& kernel, Kind kind, size_t shared = 4096, int grid = 2, int device_from = 0,
                   int device_to = 1) {
  for (int index = device_from; index <= device_to; ++index)
    for (int seed = 0; seed < kNumSeeds; ++seed) {
      emulator::set_seed(static_cast<uint64_t>(seed));
      Device device(index);
      Findings findings;
      launch(device, {.name = "broken", .grid = {grid}, .shared_bytes = shared}, kernel);
      EXPECT_TRUE(findings.has(kind))
          << "device " << index << " seed " << seed
          << ", found: " << (findings.all().empty() ? "nothing" : findings.all()[0].text);
    }
}

template <class Kernel>
void expect_clean(const Kernel& kernel, size_t shared = 4096, int grid = 2) {
  for (int index = 0; index < 2; ++index)
    for (int seed = 0; seed < kNumSeeds; ++seed) {
      emulator::set_seed(static_cast<uint64_t>(seed));
      Device device(index);
      Findings findings;
      launch(device, {.name = "sound", .grid = {grid}, .shared_bytes = shared}, kernel);
      EXPECT_TRUE(findings.all().empty()) << findings.all()[0].text;
    }
}

// Words of 16 bytes are written and read whole, in quarters, and whole again: the watch over them may take a
// word as one or in parts, and must miss nothing between. Without barrier kMissing (1 .. 3) it races.
template <int kMissing>
struct WordsAndPartsKernel {
  static constexpr int kThreads = 64;
  Global<float> out;  // [grid, kThreads]

  void operator()() const {
    SharedPool pool;
    const Shared<float> words = pool.take<float>(4 * kThreads);
    const int mine = 4 * thread_idx(), next = 4 * (thread_idx() ^ 1);
    words.store<4>(mine, {{1, 2, 3, 4}});
    if (kMissing != 1) block_sync();
    float sum = words.load<4>(mine).v[0] + words.load<4>(next).v[3];  // a word has two readers
    if (kMissing != 2)
      block_sync();
    else
      sum = shuffle_xor(sum, 0, 32);  // all have read: only what is known of readers tells
    words.put(mine + 2, sum);
    if (kMissing != 3) block_sync();
    sum += words.load<4>(next).v[2];
    out.put(int64_t{block_idx().x} * kThreads + thread_idx(), sum);
  }
};

// An FP8 cache is decoded by a table of 256 floats that the block builds first (field report 004).
template <bool kBarrier>
struct Fp8TableKernel {
  static constexpr int kThreads = 256;
  Global<e4m3_t> x;   // [grid, kThreads]
  Global<float> out;  // [grid, kThreads]

  void operator()() const {
    SharedPool pool;
    const Shared<float> table = pool.take<float>(256);
    table.put(thread_idx(), to_float(e4m3_t{static_cast<uint8_t>(thread_idx())}));
    if (kBarrier) block_sync();
    const int64_t i = int64_t{block_idx().x} * kThreads + thread_idx();
    out.put(i, table.get(x.get(i).bits));
  }
};

class EmulatorTest : public testing::Test {
 protected:
  template <class T>
  Global<T> make(const std::vector<T>& values) {
    buffers_.push_back(Device(0).allocate(DType::kU8, {static_cast<Index>(values.size() * sizeof(T))}));
    std::memcpy(buffers_.back().data(), values.data(), values.size() * sizeof(T));
    return {static_cast<T*>(buffers_.back().data())};
  }
  std::vector<Buffer> buffers_;
};

TEST_F(EmulatorTest, ARaceInPartOfAWordIsCaught) {
  const Global<float> out = make(std::vector<float>(128));
  expect_caught(WordsAndPartsKernel<1>{out}, Kind::kSharedRace);
  expect_caught(WordsAndPartsKernel<2>{out}, Kind::kSharedRace);
  expect_caught(WordsAndPartsKernel<3>{out}, Kind::kSharedRace);
  expect_clean(WordsAndPartsKernel<0>{out});
}

TEST_F(EmulatorTest, MissingBarrierAfterAnFp8TableIsCaught) {
  std::vector<e4m3_t> codes;
  for (int i = 0; i < 512; ++i) codes.push_back({static_cast<uint8_t>(i * 37)});
  const Global<e4m3_t> x = make(codes);
  const Global<float> out = make(std::vector<float>(512));
  expect_caught(Fp8TableKernel<false>{x, out}, Kind::kSharedRace);
  expect_clean(Fp8TableKernel<true>{x, out});
  for (size_t i = 0; i < codes.size(); ++i) {
    f8e4m3 code;
    code.bits = codes[i].bits;
    const auto want = static_cast<float>(code);
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(out.data[i]));
    else
      EXPECT_EQ(out.data[i], want);
  }
}

struct HalfWrittenKernel {
  static constexpr int kThreads = 128;
  Global<float> out;
  void operator()() const {
    SharedPool pool;
    const Shared<float> sums = pool.take<float>(kThreads);
    if (thread_idx() % 2 == 0) sums.put(thread_idx(), 1.0f);  // the odd ones stay as they were
    block_sync();
    out.put(thread_idx(), sums.get(thread_idx()));
  }
};

TEST_F(EmulatorTest, AReadNobodyWroteIsCaught) {
  expect_caught(HalfWrittenKernel{make(std::vector<float>(128))}, Kind::kSharedUnwritten);
}

struct ReturnsEarly {
  static constexpr int kThreads = 128;
  int n = 100;
  void operator()() const {
    if (thread_idx() >= n) return;
    block_sync();
  }
};

struct TwoBarriers {
  static constexpr int kThreads = 128;
  void operator()() const {
    if (thread_idx() < 64)
      block_sync();
    else
      block_sync();
  }
};

TEST_F(EmulatorTest, DivergentBarrierIsCaught) {
  expect_caught(ReturnsEarly{}, Kind::kBarrierDivergence);
  expect_caught(TwoBarriers{}, Kind::kBarrierDivergence);
}

struct DivergentSumKernel {
  static constexpr int kThreads = 128;
  Global<float> out;
  void operator()() const {
    if (thread_idx() % 4 == 3) return;
    out.put(thread_idx(), group_sum<32>(1.0f));
  }
};

// What one lane deposits is no product to the others.
struct ProductBesideSumKernel {
  static constexpr int kThreads = 128;
  Global<float> out;
  void operator()() const {
    FragmentC c{{1, 1, 1, 1}};
    if (thread_idx() % 4 == 3)
      c.v[0] = group_sum<32>(1.0f);
    else
      multiply_add<bf16_t>(c, FragmentA{}, FragmentB{});
    out.put(thread_idx(), c.v[0]);
  }
};

TEST_F(EmulatorTest, DivergentCollectiveIsCaught) {
  expect_caught(DivergentSumKernel{make(std::vector<float>(128))}, Kind::kWaveDivergence);
  expect_caught(ProductBesideSumKernel{make(std::vector<float>(128))}, Kind::kWaveDivergence);
}

// The habit of 32 lanes: thread / 32 is taken for the wave, a group of 32 for all of it.
template <int kAssumed>
struct WaveSumKernel {
  static constexpr int kThreads = 256;
  Global<float> out;  // [grid]
  int wave;           // the device's

  void operator()() const {
    SharedPool pool;
    const Shared<float> sums = pool.take<float>(kThreads / kAssumed);
    const float sum = group_sum<kAssumed>(1.0f);
    if (thread_idx() % kAssumed == 0) sums.put(thread_idx() / wave, sum);
    block_sync();
    float total = 0;
    for (int i = 0; i < kThreads / wave; ++i) total += sums.get(i);
    if (thread_idx() == 0) out.put(block_idx().x, total);
  }
};

TEST_F(EmulatorTest, WaveOf32AssumedOnWave64IsCaught) {
  const Global<float> out = make(std::vector<float>(2));
  expect_caught(WaveSumKernel<32>{out, 64}, Kind::kSharedRace, 4096, 2, /*device_from=*/1);
  expect_caught(WaveSumKernel<64>{out, 32}, Kind::kWaveDivergence, 4096, 2, 0, /*device_to=*/0);
}

// Lock step is AMD's, not NVIDIA's: without wave_sync() the lanes of one wave race as well.
template <bool kSync>
struct LockStepKernel {
  static constexpr int kThreads = 64;
  Global<float> out;
  void operator()() const {
    SharedPool pool;
    const Shared<float> values = pool.take<float>(kThreads);
    values.put(thread_idx(), static_cast<float>(thread_idx()));
    if (kSync) wave_sync();
    out.put(thread_idx(), values.get(thread_idx() ^ 1));
  }
};

TEST_F(EmulatorTest, LockStepAssumptionIsCaught) {
  const Global<float> out = make(std::vector<float>(64));
  expect_caught(LockStepKernel<false>{out}, Kind::kSharedRace);
  expect_clean(LockStepKernel<true>{out});
}

template <bool kMask>
struct TailKernel {
  static constexpr int kThreads = 64;
  Global<float> x;  // [n]
  int n;
  void operator()() const {
    const int i = block_idx().x * kThreads + thread_idx();
    if (!kMask || i < n) x.put(i, 2.0f * x.get(i));
  }
};

TEST_F(EmulatorTest, MissingTailMaskIsCaught) {
  const Global<float> x = make(std::vector<float>(100, 1.0f));
  expect_caught(TailKernel<false>{x, 100}, Kind::kGlobalBounds);
  expect_clean(TailKernel<true>{x, 100});
}

struct PagedReadKernel {
  static constexpr int kThreads = 64;
  Global<int32_t> block_table;  // [2]
  Global<float> pages;          // [2, 64]
  Global<float> out;            // [64]
  void operator()() const {
    const int page = block_table.get(block_idx().x);
    out.put(thread_idx(), pages.get(page * 64 + thread_idx()));
  }
};

TEST_F(EmulatorTest, PageOutsideThePoolIsCaught) {
  const Global<float> pages = make(std::vector<float>(128, 1.0f)), out = make(std::vector<float>(64));
  expect_caught(PagedReadKernel{make(std::vector<int32_t>{0, -1}), pages, out}, Kind::kGlobalBounds);
  expect_caught(PagedReadKernel{make(std::vector<int32_t>{2, 1}), pages, out}, Kind::kGlobalBounds);
  expect_clean(PagedReadKernel{make(std::vector<int32_t>{1, 0}), pages, out});
}

struct MisalignedKernel {
  static constexpr int kThreads = 64;
  Global<float> x;
  void operator()() const { x.store<4>(0, x.load<4>(1)); }
};

TEST_F(EmulatorTest, MisalignedWordIsCaught) {
  expect_caught(MisalignedKernel{make(std::vector<float>(8))}, Kind::kGlobalAlignment);
}

struct GreedyKernel {
  static constexpr int kThreads = 64;
  void operator()() const {
    SharedPool pool;
    pool.take<float>(65).put(thread_idx(), 0.0f);
  }
};

TEST_F(EmulatorTest, MoreSharedMemoryThanAskedForIsCaught) {
  expect_caught(GreedyKernel{}, Kind::kSharedBounds, 256);
  expect_clean(GreedyKernel{}, 272);
}

TEST_F(EmulatorTest, HostMemoryIsNotDeviceMemory) {
  std::vector<float> host(64);
  expect_caught(TailKernel<true>{{host.data()}, 64}, Kind::kGlobalBounds);
}

TEST_F(EmulatorTest, AFindingIsFatalOutsideOfFindings) {
  EXPECT_DEATH(
      {
        Device device(0);
        Buffer buffer = device.allocate(DType::kF32, {100});
        launch(device, {.name = "broken", .grid = {2}}, TailKernel<false>{global<float>(buffer.view()), 100});
      },
      "broken.*out of bounds.*seed");
}

template <int kWave>
struct CollectivesKernel {
  static constexpr int kThreads = 256;
  Global<float> x, out;
  void operator()() const {
    SharedPool pool;
    const Shared<float> scratch = pool.take<float>(kThreads / kWave);
    const float value = x.get(thread_idx());
    out.put(thread_idx(), block_sum<kWave, kThreads>(value, scratch));
    out.put(256 + thread_idx(), Wave<kWave>::max(value));
    out.put(512 + thread_idx(), Wave<kWave>::broadcast(value, 3));
  }
};

TEST_F(EmulatorTest, CollectivesGiveEveryLaneTheSameBits) {
  for (int index = 0; index < 2; ++index) {
    Device device(index);
    dispatch_wave(device, [&]<int kWave>() {
      std::vector<float> values(256);
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 100.0f;
      const Global<float> out = make(std::vector<float>(768));
      launch(device, {.name = "sums", .shared_bytes = 256}, CollectivesKernel<kWave>{make(values), out});
      double sum = 0;
      for (const float value : values) sum += value;
      EXPECT_NEAR(out.data[0], sum, 1e-3);
      for (size_t i = 0; i < 256; ++i) {
        EXPECT_EQ(out.data[i], out.data[0]);
        const size_t first = i / kWave * kWave;
        EXPECT_EQ(out.data[256 + i], *std::max_element(&values[first], &values[first] + kWave));
        EXPECT_EQ(out.data[512 + i], values[first + 3]);
      }
    });
  }
}

TEST(DeviceTypes, AgreeWithTheHosts) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    f16 half;
    half.bits = static_cast<uint16_t>(bits);
    const auto want = static_cast<float>(half);
    const float got = to_float(f16_t{half.bits});
    if (std::isnan(want))
      ASSERT_TRUE(std::isnan(got));
    else
      ASSERT_EQ(got, want) << bits;
  }
  for (uint32_t step = 0; step < 1u << 20; ++step) {  // every 4096th float
    const float value = std::bit_cast<float>(step * 4096u + step % 4096u);
    ASSERT_EQ(from_float<f16_t>(value).bits & 0x7fff, f16(value).bits & 0x7fff) << value;
    ASSERT_EQ(from_float<bf16_t>(value).bits, bf16(value).bits) << value;
    if (std::isnan(value)) continue;
    ASSERT_EQ(from_float<e4m3_t>(value).bits, f8e4m3(value).bits) << value;
  }
}

}  // namespace
}  // namespace longspan::ops::device
