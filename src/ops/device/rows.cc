// Operations on rows: gather, norm, SwiGLU. One block a row, threads over its words. All are bound by memory.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

// out[i] = x[rows[i]], as bytes. Block: row i; threads over words.
template <class Word>
struct GatherKernel {
  static constexpr int kThreads = 256;
  Matrix<Word> x;        // [num_rows, n]
  Global<int32_t> rows;  // [m]
  Matrix<Word> out;      // [m, n]
  int64_t n;             // words

  DEVICE_FN void operator()() const {
    const int64_t i = block_idx().x;
    const Global<Word> from = x.row(rows.get(i));
    const Global<Word> to = out.row(i);
    for (int64_t j = thread_idx(); j < n; j += kThreads) to.put(j, from.get(j));
  }
};

// Block: one row, kept in registers up to kHeld words a thread; longer rows are read twice.
template <int kWave, class T>
struct RmsNormKernel {
  static constexpr int kThreads = 256;
  Matrix<T> x;           // [num_rows, n], updated when delta is given
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
    const Global<T> xs = x.row(row);
    const Global<T> ys = out.row(row);
    float squares = 0.0f;
    for (int64_t j = thread_idx(); j < n; j += kThreads) {
      float value = xs.at(j);
      if (!delta.empty()) {
        value = rounded<T>(value + delta.row(row).at(j));
        xs.set(j, value);
      }
      squares += value * value;
    }
    squares = block_sum<kWave, kThreads>(squares, scratch);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
    for (int64_t j = thread_idx(); j < n; j += kThreads) {  // each thread reads what it wrote
      const float w = weight.get(j);
      const float value = xs.at(j) * scale;
      ys.set(j, round_then_scale ? rounded<T>(value) * w : value * (1.0f + w));
    }
  }
};

// out = rnd(silu(gate) * up). Threads over all elements of a row; grid y = row.
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
    const float gate = gate_up.row(row).at(j);
    out.row(row).set(j, gate / (1.0f + expf(-gate)) * gate_up.row(row).at(n + j));
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

}  // namespace

void embed(const Context& context, const Embed& args) {
  const TensorView table = device_weight(args.table).view();
  CHECK_MSG(table.dtype == args.out.dtype, "[embed] table: got {}, need {}", dtype_name(table.dtype),
            dtype_name(args.out.dtype));
  gather(context, "embed", table, args.ids, args.out);
}

void gather_rows(const Context& context, const GatherRows& args) {
  gather(context, "gather_rows", args.x, args.rows, args.out);
}

void rms_norm(const Context& context, const RmsNorm& args) {
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      using Kernel = RmsNormKernel<kWave, T>;
      const bool add = !args.delta.empty();
      launch(context.device,
             {.name = add ? "add_rms_norm" : "rms_norm",
              .grid = {static_cast<int>(args.x.dim(0))},
              .shared_bytes = shared_bytes<float>(Kernel::kThreads / kWave),
              .bytes = (add ? 4.0 : 2.0) * static_cast<double>(args.x.size_bytes())},
             Kernel{.x = matrix<T>(args.x),
                    .delta = add ? matrix<T>(args.delta) : Matrix<T>{},
                    .weight = global<float>(args.weight),
                    .out = matrix<T>(args.out),
                    .n = args.x.dim(1),
                    .eps = args.eps,
                    .round_then_scale = args.kind == NormKind::kRoundThenScale});
    });
  });
}

void swiglu(const Context& context, const SwiGlu& args) {
  dispatch_element(args.out.dtype, [&]<class T>() {
    using Kernel = SwiGluKernel<T>;
    launch(context.device,
           {.name = "swiglu",
            .grid = {static_cast<int>(args.out.dim(0)), ceil_div(args.out.dim(1), Kernel::kThreads)},
            .bytes = 3.0 * static_cast<double>(args.out.size_bytes())},
           Kernel{.gate_up = matrix<T>(args.gate_up), .out = matrix<T>(args.out), .n = args.out.dim(1)});
  });
}

}  // namespace longspan::ops::device
