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

// The best of a block's threads, with thread 0.
template <int kWave, int kThreads>
DEVICE_FN void block_best(Best& best, Shared<Best> of_waves) {
#pragma unroll
  for (int mask = kWave / 2; mask > 0; mask /= 2) {
    const float value = shuffle_xor(best.value, mask, kWave);
    best.add(value, shuffle_xor(best.column, mask, kWave));
  }
  if (Wave<kWave>::lane() == 0) of_waves.put(Wave<kWave>::index(), best);
  block_sync();
  if (thread_idx() != 0) return;
  for (int w = 1; w < kThreads / kWave; ++w) best.add(of_waves.get(w).value, of_waves.get(w).column);
}

// Block (row, slice of its columns): the slice's best. Bound by latency: half a megabyte of logits a row.
template <int kWave, class T, int kWord>
struct BestOfSliceKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 256;
  static constexpr int kSlice = 4 * kThreads * kWord;  // columns
  static constexpr size_t kSharedBytes = shared_bytes<Best>(kThreads / kWave);
  Matrix<T> x;        // [num_rows, n]
  Matrix<Best> best;  // [num_rows, num_slices]
  int n;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const Shared<Best> of_waves = pool.take<Best>(kThreads / kWave);
    const Global<T> row = x.row(block_idx().x);
    const int begin = block_idx().y * kSlice;
    const int end = begin + kSlice < n ? begin + kSlice : n;
    Best mine{-INFINITY, n};
#pragma unroll
    for (int i = 0; i < kSlice / (kThreads * kWord); ++i) {
      const int j = begin + (i * kThreads + thread_idx()) * kWord;
      if (j >= end) continue;
      const Vec<T, kWord> word = row.template load<kWord>(j);
#pragma unroll
      for (int e = 0; e < kWord; ++e) mine.add(to_float(word.v[e]), j + e);
    }
    block_best<kWave, kThreads>(mine, of_waves);
    if (thread_idx() == 0) best.row(block_idx().x).put(block_idx().y, mine);
  }
};

// Block: one row, from its slices.
template <int kWave>
struct BestColumnKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 64;
  static constexpr size_t kSharedBytes = shared_bytes<Best>(kThreads / kWave);
  Matrix<Best> best;  // [num_rows, num_slices]
  Global<int32_t> out;
  int num_slices;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const Shared<Best> of_waves = pool.take<Best>(kThreads / kWave);
    Best mine = best.row(block_idx().x).get(0);
    for (int i = thread_idx(); i < num_slices; i += kThreads) {
      const Best other = best.row(block_idx().x).get(i);
      mine.add(other.value, other.column);
    }
    block_best<kWave, kThreads>(mine, of_waves);
    if (thread_idx() != 0) return;
    const bool finite = mine.value - mine.value == 0.0f;
    out.put(block_idx().x, finite ? mine.column : -1);
  }
};

}  // namespace

void best_column(const Context& context, const BestColumn& args) {
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      const auto run = [&]<int kWord>() {
        using Slice = BestOfSliceKernel<kWave, T, kWord>;
        using Row = BestColumnKernel<kWave>;
        const int num_rows = static_cast<int>(args.x.dim(0));
        const int num_slices = ceil_div(args.x.dim(1), Slice::kSlice);
        const auto room = static_cast<size_t>(num_rows) * static_cast<size_t>(num_slices) * sizeof(Best);
        const Matrix<Best> best{{static_cast<Best*>(context.scratch.reserve(room))}, num_slices};
        launch(context.device,
               {.name = "best_of_slice",
                .grid = {num_rows, num_slices},
                .shared_bytes = Slice::kSharedBytes,
                .bytes = static_cast<double>(args.x.size_bytes())},
               Slice{matrix<T>(args.x), best, static_cast<int>(args.x.dim(1))});
        launch(context.device, {.name = "best_column", .grid = {num_rows}, .shared_bytes = Row::kSharedBytes},
               Row{best, global<int32_t>(args.out), num_slices});
      };
      if (takes_words(args.x))
        run.template operator()<kVec<T>>();
      else
        run.template operator()<1>();
    });
  });
}

}  // namespace longspan::ops::device
