// The largest element of each row, for greedy decoding: four bytes go to the host instead of the logits.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

// Of two candidates the larger one, of equal ones the first; a NaN is larger than all.
struct Best {
  float value;
  int column;

  DEVICE_FN void add(float other, int other_column) {
    const bool larger = other > value || (other != other && value == value);
    if (larger || (other == value && other_column < column)) {
      value = other;
      column = other_column;
    }
  }
};

// Block: one row. Bound by latency: half a megabyte of logits.
template <int kWave, class T, int kWord>
struct BestColumnKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 1024;
  static constexpr int kWaves = kThreads / kWave;
  Matrix<T> x;  // [num_rows, n]
  Global<int32_t> out;
  int n;

  static constexpr size_t kSharedBytes = shared_bytes<float>(kWaves) + shared_bytes<int32_t>(kWaves);

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const Shared<float> values = pool.take<float>(kWaves);
    const Shared<int32_t> columns = pool.take<int32_t>(kWaves);
    const Global<T> row = x.row(block_idx().x);
    Best best{-INFINITY, n};
#pragma unroll 4
    for (int j = thread_idx() * kWord; j < n; j += kThreads * kWord) {
      const Vec<T, kWord> word = row.template load<kWord>(j);
#pragma unroll
      for (int e = 0; e < kWord; ++e) best.add(to_float(word.v[e]), j + e);
    }
#pragma unroll
    for (int mask = kWave / 2; mask > 0; mask /= 2) {
      const float value = shuffle_xor(best.value, mask, kWave);
      best.add(value, shuffle_xor(best.column, mask, kWave));
    }
    if (Wave<kWave>::lane() == 0) {
      values.put(Wave<kWave>::index(), best.value);
      columns.put(Wave<kWave>::index(), best.column);
    }
    block_sync();
    if (thread_idx() != 0) return;
    for (int w = 1; w < kWaves; ++w) best.add(values.get(w), columns.get(w));
    const bool finite = best.value - best.value == 0.0f;
    out.put(block_idx().x, finite ? best.column : -1);
  }
};

}  // namespace

void best_column(const Context& context, const BestColumn& args) {
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      const auto run = [&]<class Kernel>() {
        launch(context.device,
               {.name = "best_column",
                .grid = {static_cast<int>(args.x.dim(0))},
                .shared_bytes = Kernel::kSharedBytes,
                .bytes = static_cast<double>(args.x.size_bytes())},
               Kernel{.x = matrix<T>(args.x),
                      .out = global<int32_t>(args.out),
                      .n = static_cast<int>(args.x.dim(1))});
      };
      if (takes_words(args.x))
        run.template operator()<BestColumnKernel<kWave, T, kVec<T>>>();
      else
        run.template operator()<BestColumnKernel<kWave, T, 1>>();
    });
  });
}

}  // namespace longspan::ops::device
