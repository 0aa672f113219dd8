// Drawing a token of each row where the logits are: draw.h says what is drawn, and the host draws the same.
#include "ops/draw.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

constexpr int kDigitBits = 4;
constexpr int kParts = 1 << kDigitBits;  // that a pass cuts a range of keys into

// Of the keys a pass has seen: what each part of their range sums to, the lowest and the highest key.
struct Counted {
  uint64_t parts[kParts] = {};
  uint32_t least = ~0u;
  uint32_t most = 0;

  DEVICE_FN void add(uint32_t key, uint32_t part, uint64_t amount) {
#pragma unroll
    for (uint32_t i = 0; i < kParts; ++i) parts[i] += i == part ? amount : 0;
    least = key < least ? key : least;
    most = key > most ? key : most;
  }
};

// Sums over the block, the same in every thread afterwards.
template <int kWave, int kThreads>
class BlockTotals {
 public:
  static constexpr int kWaves = kThreads / kWave;
  static constexpr size_t kSharedBytes =
      shared_bytes<uint64_t>((kWaves + 1) * kParts) + shared_bytes<uint32_t>(kWaves * 2);

  explicit DEVICE_FN BlockTotals(SharedPool& pool)
      : parts_(pool.take<uint64_t>((kWaves + 1) * kParts)), keys_(pool.take<uint32_t>(kWaves * 2)) {}

  DEVICE_FN void fold(Counted& counted) const {
    scatter(counted.parts);
#pragma unroll
    for (int mask = kWave / 2; mask > 0; mask /= 2) {
      const uint32_t least = shuffle_xor(counted.least, mask, kWave);
      const uint32_t most = shuffle_xor(counted.most, mask, kWave);
      counted.least = least < counted.least ? least : counted.least;
      counted.most = most > counted.most ? most : counted.most;
    }
    const int wave = Wave<kWave>::index(), lane = Wave<kWave>::lane();
    block_sync();  // what was folded last has been read
    if (lane < kParts) parts_.put(wave * kParts + lane, counted.parts[0]);
    if (lane == 0) keys_.put(wave * 2, counted.least), keys_.put(wave * 2 + 1, counted.most);
    block_sync();
    if (thread_idx() < kParts) {
      uint64_t sum = 0;
      for (int w = 0; w < kWaves; ++w) sum += parts_.get(w * kParts + thread_idx());
      parts_.put(kWaves * kParts + thread_idx(), sum);
    }
    for (int w = 0; w < kWaves; ++w) {
      const uint32_t least = keys_.get(w * 2), most = keys_.get(w * 2 + 1);
      counted.least = least < counted.least ? least : counted.least;
      counted.most = most > counted.most ? most : counted.most;
    }
    block_sync();
#pragma unroll
    for (int i = 0; i < kParts; ++i) counted.parts[i] = parts_.get(kWaves * kParts + i);
  }

  DEVICE_FN uint64_t sum(uint64_t value) const {
    value = Wave<kWave>::sum(value);
    block_sync();
    if (Wave<kWave>::lane() == 0) parts_.put(Wave<kWave>::index(), value);
    block_sync();
    uint64_t total = 0;
    for (int w = 0; w < kWaves; ++w) total += parts_.get(w);
    return total;
  }

 private:
  // Leaves the wave's sum of values[lane % kParts] in values[0]: lanes exchange halves of what they hold.
  template <int kHalf = kParts / 2>
  static DEVICE_FN void scatter(uint64_t (&values)[kParts]) {
    const bool upper = (Wave<kWave>::lane() & kHalf) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const uint64_t low = values[i], high = values[i + kHalf];
      values[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, kHalf, kWave);
    }
    if constexpr (kHalf > 1) {
      scatter<kHalf / 2>(values);
    } else {
#pragma unroll
      for (int mask = kParts; mask < kWave; mask *= 2) values[0] += shuffle_xor(values[0], mask, kWave);
    }
  }

  Shared<uint64_t> parts_;  // [kWaves + 1, kParts], the last row of all waves
  Shared<uint32_t> keys_;   // [kWaves, 2]
};

// What a pass asks of an element; an amount of 0 does not count.
struct Candidate {
  uint32_t key;
  uint64_t amount;
};
struct CountAll {
  DEVICE_FN Candidate operator()(uint32_t distance, int) const {
    return {distance, distance < kFar ? 1u : 0u};
  }
};
struct WeighUpTo {
  uint32_t end;
  DEVICE_FN Candidate operator()(uint32_t distance, int) const {
    return {distance, distance <= end ? draw_weight(distance) : 0};
  }
};
struct IdsAt {
  uint32_t end;
  DEVICE_FN Candidate operator()(uint32_t distance, int id) const {
    return {static_cast<uint32_t>(id), distance == end ? 1u : 0u};
  }
};

// Block: one row, read some ten to twenty times, from the second level cache after the first. Where a sum is
// reached is found from the top digit of the distances down: each pass adds up the sixteen parts of the part
// before it, and the last is the one that sees a single distance, which 16-bit logits have after a few.
template <int kWave, class T, int kWord>
struct DrawKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 512;
  using Totals = BlockTotals<kWave, kThreads>;
  static constexpr size_t kSharedBytes = Totals::kSharedBytes + shared_bytes<float>(Totals::kWaves);

  Matrix<T> x;              // [num_rows, n]
  Global<uint32_t> limits;  // [num_rows, 8]: the rows, in 32-bit words
  Global<uint64_t> states;  // [num_rows, 4]: the same in 64-bit words
  Global<int32_t> out;      // [num_rows]
  int n;

  struct Row {
    Global<T> logits;
    float best;
    float scale;
    const Totals& totals;
  };
  // The candidates in front of distance `end`, and the first `ties` at it.
  struct Prefix {
    uint32_t end;
    uint64_t ties;
  };
  // The key at which a sum is reached, and what those below it sum to.
  struct Reached {
    uint32_t key;
    uint64_t below;
  };

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    SharedPool pool;
    const Totals totals(pool);
    const Shared<float> scratch = pool.take<float>(Totals::kWaves);
    const int64_t index = block_idx().x;
    const Vec<uint32_t, 4> limit = limits.load<4>(index * 8);      // scale, top_k, max_distance
    const Vec<uint64_t, 2> state = states.load<2>(index * 4 + 2);  // top_p, state
    const Row row{x.row(index), best_of(x.row(index), scratch), std::bit_cast<float>(limit.v[0]), totals};
    const bool finite = row.best - row.best == 0.0f;
    const int32_t token = finite ? draw_from(row, limit.v[1], limit.v[2], state.v[0], state.v[1]) : -1;
    if (thread_idx() != 0) return;
    out.put(index, token);
    states.put(index * 4 + 3, state.v[1] + kStateStep);
  }

  DEVICE_FN int32_t draw_from(const Row& row, uint32_t top_k, uint32_t max_distance, uint64_t top_p,
                              uint64_t state) const {
    Prefix kept{kFar, 0};
    if (top_k > 0) kept = first_of(row, top_k);
    if (top_p != ~uint64_t{0}) kept = reach(row, kept, share_of(weight_of(row, kept), top_p));
    if (max_distance < kept.end) kept = {max_distance + 1, 0};
    return id_of(row, reach(row, kept, share_of(weight_of(row, kept), draw_random(state))));
  }

  // Infinite where the row holds a NaN.
  DEVICE_FN float best_of(const Global<T>& logits, const Shared<float>& scratch) const {
    float best = -INFINITY;
#pragma unroll 2
    for (int j = thread_idx() * kWord; j < n; j += kThreads * kWord) {
      const Vec<T, kWord> word = logits.template load<kWord>(j);
#pragma unroll
      for (int e = 0; e < kWord; ++e) {
        const float logit = to_float(word.v[e]);
        best = logit == logit ? fmaxf(best, logit) : INFINITY;
      }
    }
    return block_max<kWave, kThreads>(best, scratch);
  }

  // The first `count` candidates; all, where there are no more.
  DEVICE_FN Prefix first_of(const Row& row, uint32_t count) const {
    const Reached reached = descend(row, 32, count, CountAll{});
    return {reached.key, count - reached.below};
  }

  // The first of `kept` whose weights sum to `sum`, which all of `kept` have.
  DEVICE_FN Prefix reach(const Row& row, const Prefix& kept, uint64_t sum) const {
    const Reached reached = descend(row, 32, sum, WeighUpTo{kept.end});
    const uint64_t weight = draw_weight(reached.key);
    return {reached.key, (sum - reached.below + weight - 1) / weight};
  }

  // The last one of a prefix: its id.
  DEVICE_FN int32_t id_of(const Row& row, const Prefix& prefix) const {
    int bits = kDigitBits;
    while (bits < 28 && n > 1 << bits) bits += kDigitBits;
    return static_cast<int32_t>(descend(row, bits, prefix.ties, IdsAt{prefix.end}).key);
  }

  DEVICE_FN uint64_t weight_of(const Row& row, const Prefix& kept) const {
    uint64_t weight = 0;
#pragma unroll 2
    for (int j = thread_idx() * kWord; j < n; j += kThreads * kWord) {
      const Vec<T, kWord> word = row.logits.template load<kWord>(j);
#pragma unroll
      for (int e = 0; e < kWord; ++e) {
        const uint32_t distance = draw_distance(row.best, to_float(word.v[e]), row.scale);
        if (distance < kept.end) weight += draw_weight(distance);
      }
    }
    return row.totals.sum(weight) + kept.ties * draw_weight(kept.end);
  }

  // Where the amounts, from the lowest key of `bits` bits on, sum to `sum`; {kFar, sum} where all are less.
  template <class CandidateOf>
  DEVICE_FN Reached descend(const Row& row, int bits, uint64_t sum, const CandidateOf& candidate_of) const {
    Reached reached{0, 0};
    for (int shift = bits - kDigitBits; shift >= 0; shift -= kDigitBits) {
      Counted counted;
      count(row, candidate_of, uint64_t{reached.key} >> (shift + kDigitBits), shift, counted);
      row.totals.fold(counted);
      uint32_t part = kParts;
#pragma unroll
      for (uint32_t i = 0; i < kParts; ++i) {
        if (part < kParts) continue;
        if (reached.below + counted.parts[i] >= sum) part = i;
        if (part == kParts) reached.below += counted.parts[i];
      }
      if (part == kParts) return {kFar, sum};
      if (counted.least == counted.most) return {counted.least, reached.below};
      reached.key |= part << shift;
    }
    return reached;
  }

  // Of this thread's elements those whose keys have `range` above the digit at `shift`.
  template <class CandidateOf>
  DEVICE_FN void count(const Row& row, const CandidateOf& candidate_of, uint64_t range, int shift,
                       Counted& counted) const {
#pragma unroll 2
    for (int j = thread_idx() * kWord; j < n; j += kThreads * kWord) {
      const Vec<T, kWord> word = row.logits.template load<kWord>(j);
#pragma unroll
      for (int e = 0; e < kWord; ++e) {
        const Candidate candidate =
            candidate_of(draw_distance(row.best, to_float(word.v[e]), row.scale), j + e);
        if (uint64_t{candidate.key} >> (shift + kDigitBits) == range && candidate.amount > 0)
          counted.add(candidate.key, candidate.key >> shift & (kParts - 1), candidate.amount);
      }
    }
  }
};

}  // namespace

void draw(const Context& context, const Draw& args) {
  if (draw_counted(context, args)) return;
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      const auto run = [&]<class Kernel>() {
        launch(context.device,
               {.name = "draw",
                .grid = {static_cast<int>(args.x.dim(0))},
                .shared_bytes = Kernel::kSharedBytes,
                .bytes = static_cast<double>(args.x.size_bytes())},
               Kernel{.x = matrix<T>(args.x),
                      .limits = global<uint32_t>(args.rows),
                      .states = global<uint64_t>(args.rows),
                      .out = global<int32_t>(args.out),
                      .n = static_cast<int>(args.x.dim(1))});
      };
      if (takes_words(args.x))
        run.template operator()<DrawKernel<kWave, T, kVec<T>>>();
      else
        run.template operator()<DrawKernel<kWave, T, 1>>();
    });
  });
}

}  // namespace longspan::ops::device
