// Operations on rows: gather, norm, SwiGLU. A block takes a row, its threads the words. All are bound by
// memory.
#include <algorithm>

#include "ops/device/activation.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

// out[i] = x[rows[i]], as bytes. Block: row i; threads over words.
template <class Word>
struct GatherKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 256;
  Matrix<Word> x;        // [num_rows, n]
  Global<int32_t> rows;  // [m]
  Matrix<Word> out;      // [m, n]
  int64_t n;             // words

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    const int64_t i = block_idx().x;
    const Global<Word> from = x.row(rows.get(i));
    const Global<Word> to = out.row(i);
    for (int64_t j = thread_idx(); j < n; j += kThreads) to.put(j, from.get(j));
  }
};

// The same of T widened to float. Block: row i; threads over elements.
template <class T>
struct GatherWideKernel {
  static constexpr int kThreads = 256;
  Matrix<T> x;           // [num_rows, n]
  Global<int32_t> rows;  // [m]
  Matrix<float> out;     // [m, n]
  int64_t n;

  DEVICE_FN void operator()() const {
    const int64_t i = block_idx().x;
    const Global<T> from = x.row(rows.get(i));
    for (int64_t j = thread_idx(); j < n; j += kThreads) out.row(i).put(j, from.at(j));
  }
};

// out[i, j] = x[i, column_of[j]], 0 where there is none. Thread: a word of out; y: row i.
template <class T>
struct GatherColumnsKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 256;
  Matrix<T> x;                // [m, ...]
  Global<int32_t> column_of;  // [n]
  Matrix<T> out;              // [m, n] in whole words
  int n;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    const int j = (block_idx().x * kThreads + thread_idx()) * kVec<T>;
    if (j >= n) return;
    Vec<T, kVec<T>> word;
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      const int column = column_of.get(j + e);
      word.v[e] = column < 0 ? from_float<T>(0.0f) : x.row(block_idx().y).get(column);
    }
    out.row(block_idx().y).template store<kVec<T>>(j, word);
  }
};

// y of one element, before its rounding.
template <class T>
DEVICE_FN float normed(float value, float scale, float weight, bool round_then_scale) {
  return round_then_scale ? rounded<T>(value * scale) * weight : value * scale * (1.0f + weight);
}

// Block: every num_blocks-th row, in whole words, held in registers between the sum and the scaling; the
// weight stays there. Bound by latency at few rows: a thread's reads are all under way before the first is
// used. R is T or wider.
template <int kWave, class T, class R>
struct RmsNormWordsKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 512;
  static constexpr int kHeld = 2;  // words of T a thread
  static constexpr int kBlocksPerUnit = 2;
  static constexpr int kParts = kVec<T> / kVec<R>;  // words of R beside one of T
  static constexpr int64_t kMaxColumns = int64_t{kThreads} * kHeld * kVec<T>;
  using Word = Vec<T, kVec<T>>;

  Matrix<R> x;           // [num_rows, n], updated when delta is given
  Matrix<T> delta;       // [num_rows, n] or empty
  Global<float> weight;  // [n]
  Matrix<T> out;         // [num_rows, n]
  int64_t n;
  float eps;
  bool round_then_scale;
  int num_rows;
  int num_blocks;
  using Weights = Vec<float, 4>[kHeld][kVec<T> / 4];

  DEVICE_FN void operator()() const {
    release_next();
    SharedPool pool;
    // In turn: a row's sums may be read while the next row's are written.
    const Shared<float> scratch[2] = {pool.take<float>(kThreads / kWave), pool.take<float>(kThreads / kWave)};
    const int words = static_cast<int>(n) / kVec<T>;
    Weights weights;
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
#pragma unroll
      for (int e = 0; e < kVec<T> / 4; ++e)
        if (index(h) < words) weights[h][e] = weight.load<4>(index(h) * kVec<T> + e * 4);
    await_previous();
    int turn = 0;
    for (int row = block_idx().x; row < num_rows; row += num_blocks, turn ^= 1)
      norm_row(row, words, weights, turn == 0 ? scratch[0] : scratch[1]);
  }

  DEVICE_FN void norm_row(int64_t row, int words, const Weights& weights, Shared<float> scratch) const {
    Vec<R, kVec<R>> held[kHeld][kParts];
    Word added[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (index(h) >= words) continue;
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        held[h][p] = x.row(row).template load<kVec<R>>(index(h) * kVec<T> + p * kVec<R>);
      if (!delta.empty()) added[h] = delta.row(row).template load<kVec<T>>(index(h) * kVec<T>);
    }
    float squares = 0.0f;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (index(h) >= words) continue;
      if (!delta.empty()) {
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) {
          R& value = held[h][e / kVec<R>].v[e % kVec<R>];
          value = from_float<R>(to_float(value) + to_float(added[h].v[e]));
        }
#pragma unroll
        for (int p = 0; p < kParts; ++p)
          x.row(row).template store<kVec<R>>(index(h) * kVec<T> + p * kVec<R>, held[h][p]);
      }
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
        const float value = to_float(held[h][e / kVec<R>].v[e % kVec<R>]);
        squares += value * value;
      }
    }
    squares = block_sum<kWave, kThreads>(squares, scratch);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (index(h) >= words) continue;
      Word y;
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e)
        y.v[e] = from_float<T>(normed<T>(to_float(held[h][e / kVec<R>].v[e % kVec<R>]), scale,
                                         weights[h][e / 4].v[e % 4], round_then_scale));
      out.row(row).template store<kVec<T>>(index(h) * kVec<T>, y);
    }
  }

  static DEVICE_FN int64_t index(int h) { return thread_idx() + h * kThreads; }  // of a word
};

// Block: one row of any width and alignment, read twice.
template <int kWave, class T, class R>
struct RmsNormKernel {
  static constexpr int kThreads = 256;
  Matrix<R> x;           // [num_rows, n], updated when delta is given
  Matrix<T> delta;       // [num_rows, n] or empty
  Global<float> weight;  // [n]
  Matrix<T> out;         // [num_rows, n]
  int64_t n;
  float eps;
  bool round_then_scale;

  DEVICE_FN void operator()() const {
    SharedPool pool;
    const Shared<float> scratch = pool.take<float>(kThreads / kWave);
    const int64_t row = block_idx().x;
    const Global<R> xs = x.row(row);
    const Global<T> ys = out.row(row);
    float squares = 0.0f;
    for (int64_t j = thread_idx(); j < n; j += kThreads) {
      float value = xs.at(j);
      if (!delta.empty()) {
        value = rounded<R>(value + delta.row(row).at(j));
        xs.set(j, value);
      }
      squares += value * value;
    }
    squares = block_sum<kWave, kThreads>(squares, scratch);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
    for (int64_t j = thread_idx(); j < n; j += kThreads) {  // each thread reads what it wrote
      ys.set(j, normed<T>(xs.at(j), scale, weight.get(j), round_then_scale));
    }
  }
};

// out = rnd(silu(gate) * up). Thread: one word of a row.
template <class T>
struct SwiGluWordsKernel {
  static constexpr int kThreads = 256;
  using Word = Vec<T, kVec<T>>;
  Matrix<T> gate_up;  // [num_rows, 2 n]
  Matrix<T> out;      // [num_rows, n]
  int64_t n;

  DEVICE_FN void operator()() const {
    const int64_t j = (static_cast<int64_t>(block_idx().y) * kThreads + thread_idx()) * kVec<T>;
    if (j >= n) return;
    const int64_t row = block_idx().x;
    Word gates = gate_up.row(row).template load<kVec<T>>(j);
    const Word ups = gate_up.row(row).template load<kVec<T>>(n + j);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e)
      gates.v[e] = from_float<T>(swiglu_of(to_float(gates.v[e]), to_float(ups.v[e])));
    out.row(row).template store<kVec<T>>(j, gates);
  }
};

// The same of any width and alignment. Thread: one element.
template <class T>
struct SwiGluKernel {
  static constexpr int kThreads = 256;
  Matrix<T> gate_up;  // [num_rows, 2 n]
  Matrix<T> out;      // [num_rows, n]
  int64_t n;

  DEVICE_FN void operator()() const {
    const int64_t j = static_cast<int64_t>(block_idx().y) * kThreads + thread_idx();
    if (j >= n) return;
    const int64_t row = block_idx().x;
    out.row(row).set(j, swiglu_of(gate_up.row(row).at(j), gate_up.row(row).at(n + j)));
  }
};

template <class Word>
void gather_words(const Context& context, const char* name, const TensorView& x, const TensorView& rows,
                  const TensorView& out) {
  const auto per_word = static_cast<int64_t>(sizeof(Word) / dtype_size(x.dtype));
  const GatherKernel<Word> kernel{.x = {{static_cast<Word*>(x.data)}, x.stride(0) / per_word},
                                  .rows = global<int32_t>(rows),
                                  .out = {{static_cast<Word*>(out.data)}, out.stride(0) / per_word},
                                  .n = out.dim(1) / per_word};
  launch(context.device,
         {.name = name,
          .grid = {static_cast<int>(out.dim(0))},
          .bytes = 2.0 * static_cast<double>(out.size_bytes())},
         kernel);
}

void gather(const Context& context, const char* name, const TensorView& x, const TensorView& rows,
            const TensorView& out) {
  if (takes_words(x) && takes_words(out)) return gather_words<Vec<uint32_t, 4>>(context, name, x, rows, out);
  if (dtype_size(x.dtype) == 4) return gather_words<uint32_t>(context, name, x, rows, out);
  gather_words<uint16_t>(context, name, x, rows, out);
}

template <class Kernel, class T, class R>
void launch_norm(const Context& context, int wave, const RmsNorm& args) {
  const bool add = !args.delta.empty();
  Kernel kernel{.x = matrix<R>(args.x),
                .delta = add ? matrix<T>(args.delta) : Matrix<T>{},
                .weight = global<float>(args.weight),
                .out = matrix<T>(args.out),
                .n = args.x.dim(1),
                .eps = args.eps,
                .round_then_scale = args.kind == NormKind::kRoundThenScale};
  int num_blocks = static_cast<int>(args.x.dim(0));
  size_t shared = shared_bytes<float>(Kernel::kThreads / wave);
  if constexpr (requires { Kernel::kBlocksPerUnit; }) {
    kernel.num_rows = num_blocks;
    num_blocks = std::min(num_blocks, Kernel::kBlocksPerUnit * context.device.info().num_units);
    kernel.num_blocks = num_blocks;
    shared *= 2;
  }
  launch(context.device,
         {.name = add ? "add_rms_norm" : "rms_norm",
          .grid = {num_blocks},
          .shared_bytes = shared,
          .bytes = static_cast<double>((add ? 2 : 1) * (args.x.size_bytes() + args.out.size_bytes()))},
         kernel);
}

}  // namespace

void embed(const Context& context, const Embed& args) {
  const TensorView table = device_weight(args.table).view();
  if (table.dtype == DType::kF16 && args.out.dtype == DType::kF32)
    return launch(context.device,
                  {.name = "embed",
                   .grid = {static_cast<int>(args.out.dim(0))},
                   .bytes = 1.5 * static_cast<double>(args.out.size_bytes())},
                  GatherWideKernel<f16_t>{.x = matrix<f16_t>(table),
                                          .rows = global<int32_t>(args.ids),
                                          .out = matrix<float>(args.out),
                                          .n = args.out.dim(1)});
  CHECK_MSG(table.dtype == args.out.dtype, "[embed] table: got {}, need {}", dtype_name(table.dtype),
            dtype_name(args.out.dtype));
  gather(context, "embed", table, args.ids, args.out);
}

void gather_columns(const Context& context, const TensorView& x, const TensorView& column_of,
                    const TensorView& out) {
  dispatch_element(x.dtype, [&]<class T>() {
    using Kernel = GatherColumnsKernel<T>;
    launch(
        context.device,
        {.name = "gather_columns",
         .grid = {ceil_div(out.dim(1), Kernel::kThreads * kVec<T>), static_cast<int>(out.dim(0))},
         .bytes = 2.0 * static_cast<double>(out.size_bytes()) + static_cast<double>(column_of.size_bytes())},
        Kernel{.x = matrix<T>(x),
               .column_of = global<int32_t>(column_of),
               .out = matrix<T>(out),
               .n = static_cast<int>(out.dim(1))});
  });
}

void gather_rows(const Context& context, const GatherRows& args) {
  gather(context, "gather_rows", args.x, args.rows, args.out);
}

void rms_norm(const Context& context, const RmsNorm& args) {
  const bool words =
      takes_words(args.x) && takes_words(args.delta) && takes_words(args.out) && takes_words(args.weight);
  const auto run = [&]<class T, class R>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      using WordsKernel = RmsNormWordsKernel<kWave, T, R>;
      if (words && args.x.dim(1) <= WordsKernel::kMaxColumns)
        launch_norm<WordsKernel, T, R>(context, kWave, args);
      else
        launch_norm<RmsNormKernel<kWave, T, R>, T, R>(context, kWave, args);
    });
  };
  if (args.x.dtype != args.out.dtype) return run.template operator()<f16_t, float>();
  dispatch_element(args.out.dtype, [&]<class T>() { run.template operator()<T, T>(); });
}

void swiglu(const Context& context, const SwiGlu& args) {
  const bool words = takes_words(args.gate_up) && takes_words(args.out);
  dispatch_element(args.out.dtype, [&]<class T>() {
    const auto run = [&]<class Kernel>(int64_t elements) {
      launch(context.device,
             {.name = "swiglu",
              .grid = {static_cast<int>(args.out.dim(0)),
                       ceil_div(args.out.dim(1), Kernel::kThreads * elements)},
              .bytes = 3.0 * static_cast<double>(args.out.size_bytes())},
             Kernel{.gate_up = matrix<T>(args.gate_up), .out = matrix<T>(args.out), .n = args.out.dim(1)});
    };
    if (words)
      run.template operator()<SwiGluWordsKernel<T>>(kVec<T>);
    else
      run.template operator()<SwiGluKernel<T>>(1);
  });
}

}  // namespace longspan::ops::device
