// Drawing a token from long rows of 16-bit logits: the same tokens as draw.cc, by way of how often each of
// their 65,536 values occurs. Counting reads a row with many blocks; what one block decides about the counts
// takes a few passes over little.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"
#include "ops/draw.h"

namespace longspan::ops::device {
namespace {

constexpr int kBins = 1 << 16;
constexpr int kSlices = 64;  // of a row, for as many blocks
constexpr int kSliceThreads = 256;
constexpr int kPickThreads = 512;
constexpr Index kLongRow = 8192;  // draw.cc's block reads shorter ones as fast

// Bins have the largest logit first. A NaN goes to bin 0, in front of infinity; 0 and -0 share one.
template <class T>
DEVICE_FN int bin_of(T logit) {
  const uint32_t bits = (logit.bits & 0x7fffu) == 0 ? 0u : logit.bits;
  const float value = to_float(logit);
  if (!(value == value)) return 0;
  return static_cast<int>((bits & 0x8000u) != 0 ? bits : 0x7fffu - bits);
}
template <class T>
DEVICE_FN float value_of(int bin) {
  const uint32_t bits = bin >= 0x8000 ? static_cast<uint32_t>(bin) : 0x7fffu - static_cast<uint32_t>(bin);
  return to_float(T{static_cast<uint16_t>(bits)});
}

// The candidates in front of distance `end`, and the first `ties` at it; no ties: no token.
struct Picked {
  float best;
  float scale;
  uint32_t end;
  uint32_t ties;
};

// Elements of a row's slice: whole words.
template <int kWord>
struct Slice {
  int begin;
  int end;
  DEVICE_FN Slice(int n, int index) {
    const int words = n / kWord;
    begin = static_cast<int>(static_cast<int64_t>(words) * index / kSlices) * kWord;
    end = static_cast<int>(static_cast<int64_t>(words) * (index + 1) / kSlices) * kWord;
  }
};

// Block (slice, row).
template <class T>
struct DrawCountKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kSliceThreads;
  Matrix<T> x;              // [num_rows, n] in whole words
  Global<uint32_t> counts;  // [num_rows, kBins], zeros
  int n;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    const Slice<kVec<T>> slice(n, block_idx().x);
    const Global<T> logits = x.row(block_idx().y);
    const Global<uint32_t> bins = counts + static_cast<int64_t>(block_idx().y) * kBins;
    for (int j = slice.begin + thread_idx() * kVec<T>; j < slice.end; j += kThreads * kVec<T>) {
      const Vec<T, kVec<T>> word = logits.template load<kVec<T>>(j);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) add_global(bins.data + bin_of(word.v[e]), uint32_t{1});
    }
  }
};

// Sums in front of each of a block's threads' values, and of all of them.
template <int kWave, int kThreads>
struct Running {
  static constexpr int kWaves = kThreads / kWave;
  uint64_t before;
  uint64_t total;

  // scratch: [kWaves], free to use again after the next block_sync()
  DEVICE_FN Running(uint64_t value, Shared<uint64_t> scratch) {
    const uint64_t upto = Wave<kWave>::running_sum(value);
    block_sync();  // what lay there has been read
    if (Wave<kWave>::lane() == kWave - 1) scratch.put(Wave<kWave>::index(), upto);
    block_sync();
    before = upto - value;
    total = 0;
    for (int w = 0; w < kWaves; ++w) {
      const uint64_t sum = scratch.get(w);
      before += w < Wave<kWave>::index() ? sum : 0;
      total += sum;
    }
  }
};

// Block: a row. Bins lie in groups of four a lane of a wave; thread i keeps what lies in front of group i.
template <int kWave, class T>
struct DrawPickKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kPickThreads;
  static constexpr int kWaves = kThreads / kWave;
  static constexpr int kLaneBins = 4;
  static constexpr int kGroupBins = kWave * kLaneBins;
  static constexpr int kGroups = kBins / kGroupBins;
  static_assert(kGroups <= kThreads);
  static constexpr size_t kSharedBytes =
      2 * shared_bytes<uint64_t>(kGroups + 1) + shared_bytes<uint64_t>(kWaves) + shared_bytes<uint64_t>(2);

  Global<uint32_t> counts;  // [num_rows, kBins]
  Global<uint32_t> limits;  // [num_rows, 8]: the rows, in 32-bit words
  Global<uint64_t> states;  // [num_rows, 4]: the same in 64-bit words
  Global<uint32_t> picked;  // [num_rows, 4]: Picked

  struct Row {
    Global<uint32_t> bins;
    float scale;
    int best_bin;
    float best;
    Shared<uint64_t> numbers;  // [kGroups + 1]: candidates in front of a group
    Shared<uint64_t> weights;  // [kGroups + 1]: their weights
    Shared<uint64_t> scratch;  // [kWaves]
    Shared<uint64_t> answer;   // [2]

    DEVICE_FN uint32_t distance(int bin) const { return draw_distance(best, value_of<T>(bin), scale); }
    DEVICE_FN uint64_t weight(int bin, uint32_t count) const {
      return count == 0 ? 0 : count * draw_weight(distance(bin));
    }
    DEVICE_FN uint64_t number(int bin, uint32_t count) const {
      return count == 0 || distance(bin) >= kFar ? 0 : count;
    }
  };
  struct Prefix {
    uint32_t end;
    uint64_t ties;
  };

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const int64_t index = block_idx().x;
    const Vec<uint32_t, 4> limit = limits.load<4>(index * 8);      // scale, top_k, max_distance
    const Vec<uint64_t, 2> state = states.load<2>(index * 4 + 2);  // top_p, state
    Row row{};
    row.bins = counts + index * kBins;
    row.scale = std::bit_cast<float>(limit.v[0]);
    row.numbers = pool.take<uint64_t>(kGroups + 1);
    row.weights = pool.take<uint64_t>(kGroups + 1);
    row.scratch = pool.take<uint64_t>(kWaves);
    row.answer = pool.take<uint64_t>(2);
    row.best_bin = first_bin(row);
    row.best = value_of<T>(row.best_bin);
    Prefix drawn{kFar, 0};
    if (row.best - row.best == 0.0f) drawn = draw_from(row, limit.v[1], limit.v[2], state.v[0], state.v[1]);
    if (thread_idx() != 0) return;
    picked.store<4>(index * 4, {{std::bit_cast<uint32_t>(row.best), limit.v[0], drawn.end,
                                 static_cast<uint32_t>(drawn.ties)}});
    states.put(index * 4 + 3, state.v[1] + kStateStep);
  }

  DEVICE_FN Prefix draw_from(const Row& row, uint32_t top_k, uint32_t max_distance, uint64_t top_p,
                             uint64_t state) const {
    sum_groups(row);
    Prefix kept{kFar, 0};
    if (top_k > 0) kept = first_of(row, top_k);
    if (top_p != ~uint64_t{0}) kept = reach(row, share_of(weight_of(row, kept), top_p));
    if (max_distance < kept.end) kept = {max_distance + 1, 0};
    return reach(row, share_of(weight_of(row, kept), draw_random(state)));
  }

  // The first bin with an element. A row has one.
  DEVICE_FN int first_bin(const Row& row) const {
    float first = static_cast<float>(kBins);  // exact
    for (int i = thread_idx() * kLaneBins; i < kBins && first == static_cast<float>(kBins);
         i += kThreads * kLaneBins) {
      const Vec<uint32_t, kLaneBins> bins = row.bins.template load<kLaneBins>(i);
#pragma unroll
      for (int b = kLaneBins - 1; b >= 0; --b)
        if (bins.v[b] > 0) first = static_cast<float>(i + b);
    }
    const Shared<float> scratch{reinterpret_cast<float*>(row.numbers.data)};
    return static_cast<int>(-block_max<kWave, kThreads>(-first, scratch));
  }

  DEVICE_FN void sum_groups(const Row& row) const {
    block_sync();  // first_bin() used their memory
    for (int group = Wave<kWave>::index(); group < kGroups; group += kWaves) {
      const int first = group * kGroupBins + Wave<kWave>::lane() * kLaneBins;
      const Vec<uint32_t, kLaneBins> bins = row.bins.template load<kLaneBins>(first);
      uint64_t number = 0, weight = 0;
#pragma unroll
      for (int b = 0; b < kLaneBins; ++b) {
        number += row.number(first + b, bins.v[b]);
        weight += row.weight(first + b, bins.v[b]);
      }
      number = Wave<kWave>::sum(number);
      weight = Wave<kWave>::sum(weight);
      if (Wave<kWave>::lane() == 0) row.numbers.put(group, number), row.weights.put(group, weight);
    }
    block_sync();
    const int group = thread_idx();
    const bool present = group < kGroups;
    const Running<kWave, kThreads> number(present ? row.numbers.get(group) : 0, row.scratch);
    const Running<kWave, kThreads> weight(present ? row.weights.get(group) : 0, row.scratch);
    if (present) row.numbers.put(group, number.before), row.weights.put(group, weight.before);
    if (group == 0) row.numbers.put(kGroups, number.total), row.weights.put(kGroups, weight.total);
    block_sync();
  }

  // The first `count` candidates; all, where there are no more.
  DEVICE_FN Prefix first_of(const Row& row, uint32_t count) const {
    const uint32_t end =
        distance_at(row, row.numbers, count, [&](int b, uint32_t c) { return row.number(b, c); });
    if (end >= kFar) return {kFar, 0};
    return {end,
            count - in_front(row, row.numbers, end, [&](int b, uint32_t c) { return row.number(b, c); })};
  }

  // The first whose weights sum to `sum`, which all have.
  DEVICE_FN Prefix reach(const Row& row, uint64_t sum) const {
    const auto weigh = [&](int b, uint32_t c) { return row.weight(b, c); };
    const uint32_t end = distance_at(row, row.weights, sum, weigh);
    const uint64_t weight = draw_weight(end);
    return {end, (sum - in_front(row, row.weights, end, weigh) + weight - 1) / weight};
  }

  DEVICE_FN uint64_t weight_of(const Row& row, const Prefix& kept) const {
    if (kept.end >= kFar) return row.weights.get(kGroups);
    const auto weigh = [&](int b, uint32_t c) { return row.weight(b, c); };
    return in_front(row, row.weights, kept.end, weigh) + kept.ties * draw_weight(kept.end);
  }

  // The distance of the bin in which amounts reach `sum`; kFar where all are less.
  template <class Amount>
  DEVICE_FN uint32_t distance_at(const Row& row, Shared<uint64_t> before, uint64_t sum,
                                 const Amount& amount) const {
    if (before.get(kGroups) < sum) return kFar;
    const int i = thread_idx();
    if (i < kGroups && before.get(i) < sum && sum <= before.get(i + 1)) row.answer.put(0, i);
    block_sync();
    if (Wave<kWave>::index() == 0) {
      const int group = static_cast<int>(row.answer.get(0));
      const int first = group * kGroupBins + Wave<kWave>::lane() * kLaneBins;
      const Vec<uint32_t, kLaneBins> bins = row.bins.template load<kLaneBins>(first);
      uint64_t mine = 0;
#pragma unroll
      for (int b = 0; b < kLaneBins; ++b) mine += amount(first + b, bins.v[b]);
      uint64_t reached = before.get(group) + Wave<kWave>::running_sum(mine) - mine;
#pragma unroll
      for (int b = 0; b < kLaneBins; ++b) {
        const uint64_t next = reached + amount(first + b, bins.v[b]);
        if (reached < sum && sum <= next) row.answer.put(1, row.distance(first + b));
        reached = next;
      }
    }
    block_sync();
    return static_cast<uint32_t>(row.answer.get(1));
  }

  // What lies in front of a distance.
  template <class Amount>
  DEVICE_FN uint64_t in_front(const Row& row, Shared<uint64_t> before, uint32_t end,
                              const Amount& amount) const {
    int low = row.best_bin, high = kBins;  // the first bin that is as far: several may be
    while (low < high) {
      const int middle = (low + high) / 2;
      if (row.distance(middle) < end)
        low = middle + 1;
      else
        high = middle;
    }
    const int group = low / kGroupBins;
    block_sync();  // the last answer has been read
    if (Wave<kWave>::index() == 0) {
      uint64_t sum = 0;
      if (group < kGroups) {
        const int first = group * kGroupBins + Wave<kWave>::lane() * kLaneBins;
        const Vec<uint32_t, kLaneBins> bins = row.bins.template load<kLaneBins>(first);
#pragma unroll
        for (int b = 0; b < kLaneBins; ++b)
          if (first + b < low) sum += amount(first + b, bins.v[b]);
      }
      sum = Wave<kWave>::sum(sum);
      if (Wave<kWave>::lane() == 0) row.answer.put(0, before.get(group) + sum);
    }
    block_sync();
    const uint64_t sum = row.answer.get(0);
    block_sync();
    return sum;
  }
};

// Block (slice, row): how many elements lie at the drawn one's distance.
template <int kWave, class T>
struct DrawTiesKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kSliceThreads;
  static constexpr size_t kSharedBytes = shared_bytes<uint64_t>(kThreads / kWave);
  Matrix<T> x;
  Global<uint32_t> picked;
  Global<uint32_t> ties;  // [num_rows, kSlices]
  int n;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const Picked row = std::bit_cast<Picked>(picked.load<4>(block_idx().y * 4));
    const Slice<kVec<T>> slice(n, block_idx().x);
    uint64_t mine = 0;
    for (int j = slice.begin + thread_idx() * kVec<T>; j < slice.end; j += kThreads * kVec<T>)
      mine += ties_in(x.row(block_idx().y).template load<kVec<T>>(j), row);
    const Running<kWave, kThreads> all(mine, pool.take<uint64_t>(kThreads / kWave));
    if (thread_idx() == 0)
      ties.put(block_idx().y * kSlices + block_idx().x, static_cast<uint32_t>(all.total));
  }

  static DEVICE_FN uint32_t ties_in(const Vec<T, kVec<T>>& word, const Picked& row) {
    uint32_t count = 0;
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e)
      count += draw_distance(row.best, to_float(word.v[e]), row.scale) == row.end ? 1 : 0;
    return count;
  }
};

// Block: a row. Finds the last of the ties: the slice, then the word.
template <int kWave, class T>
struct DrawPlaceKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kSliceThreads;
  static_assert(kSlices <= kThreads);
  static constexpr size_t kSharedBytes = shared_bytes<uint64_t>(kThreads / kWave) + shared_bytes<uint64_t>(2);
  Matrix<T> x;
  Global<uint32_t> picked;
  Global<uint32_t> ties;  // [num_rows, kSlices]
  Global<int32_t> out;    // [num_rows]
  int n;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const Shared<uint64_t> scratch = pool.take<uint64_t>(kThreads / kWave);
    const Shared<uint64_t> found = pool.take<uint64_t>(2);  // the slice, and ties in front of it
    const int index = block_idx().x;
    const Picked row = std::bit_cast<Picked>(picked.load<4>(index * 4));
    if (row.ties == 0) {
      if (thread_idx() == 0) out.put(index, -1);
      return;
    }
    const uint64_t here = thread_idx() < kSlices ? ties.get(index * kSlices + thread_idx()) : 0;
    const Running<kWave, kThreads> slices(here, scratch);
    if (slices.before < row.ties && row.ties <= slices.before + here)
      found.put(0, thread_idx()), found.put(1, slices.before);
    block_sync();
    const Slice<kVec<T>> slice(n, static_cast<int>(found.get(0)));
    uint64_t before = found.get(1);
    for (int first = slice.begin; first < slice.end && before < row.ties; first += kThreads * kVec<T>) {
      const int j = first + thread_idx() * kVec<T>;
      Vec<T, kVec<T>> word{};
      if (j < slice.end) word = x.row(index).template load<kVec<T>>(j);
      const uint32_t mine = j < slice.end ? DrawTiesKernel<kWave, T>::ties_in(word, row) : 0;
      const Running<kWave, kThreads> words(mine, scratch);
      uint64_t reached = before + words.before;
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
        if (j >= slice.end || draw_distance(row.best, to_float(word.v[e]), row.scale) != row.end) continue;
        if (++reached == row.ties) out.put(index, j + e);
      }
      before += words.total;
    }
  }
};

template <class T>
void draw_counted_rows(const Context& context, const Draw& args) {
  const Index num_rows = args.x.dim(0);
  const auto n = static_cast<int>(args.x.dim(1));
  const auto bins = static_cast<size_t>(num_rows * kBins);
  const auto others = static_cast<size_t>(num_rows * (4 + kSlices));
  const Global<uint32_t> counts{
      static_cast<uint32_t*>(context.scratch.reserve((bins + others) * sizeof(uint32_t)))};
  const Global<uint32_t> picked{counts.data + bins}, ties{picked.data + num_rows * 4};
  const Grid slices{kSlices, static_cast<int>(num_rows)}, rows{static_cast<int>(num_rows)};
  const auto row_bytes = static_cast<double>(args.x.size_bytes());
  context.device.zero(counts.data, bins * sizeof(uint32_t));
  dispatch_wave(context.device, [&]<int kWave>() {
    using Pick = DrawPickKernel<kWave, T>;
    using Ties = DrawTiesKernel<kWave, T>;
    using Place = DrawPlaceKernel<kWave, T>;
    launch(context.device, {.name = "draw_count", .grid = slices, .bytes = row_bytes},
           DrawCountKernel<T>{.x = matrix<T>(args.x), .counts = counts, .n = n});
    launch(context.device, {.name = "draw_pick", .grid = rows, .shared_bytes = Pick::kSharedBytes},
           Pick{.counts = counts,
                .limits = global<uint32_t>(args.rows),
                .states = global<uint64_t>(args.rows),
                .picked = picked});
    launch(context.device,
           {.name = "draw_ties", .grid = slices, .shared_bytes = Ties::kSharedBytes, .bytes = row_bytes},
           Ties{.x = matrix<T>(args.x), .picked = picked, .ties = ties, .n = n});
    launch(context.device, {.name = "draw_place", .grid = rows, .shared_bytes = Place::kSharedBytes},
           Place{.x = matrix<T>(args.x),
                 .picked = picked,
                 .ties = ties,
                 .out = global<int32_t>(args.out),
                 .n = n});
  });
}

}  // namespace

bool draw_counted(const Context& context, const Draw& args) {
  if (args.x.dim(1) < kLongRow || !takes_words(args.x)) return false;
  if (args.x.dtype == DType::kBF16) return draw_counted_rows<bf16_t>(context, args), true;
  if (args.x.dtype == DType::kF16) return draw_counted_rows<f16_t>(context, args), true;
  return false;
}

}  // namespace longspan::ops::device
