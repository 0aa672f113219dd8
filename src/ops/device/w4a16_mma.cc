// out = x W^T for up to 16 rows of x and 4-bit weights on matrix units: 16-bit floats. Weights are the rows
// of the products and x their columns, so that one to eight rows of x cost the same; codes become exact
// 16-bit numbers and scales act on the fp32 sum of a group. w4a16.cc takes what this one does not.
#include "ops/device/code_rows.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/mma.h"

namespace longspan::ops::device {
namespace {

// Block: 16 rows of the weight; its waves take the blocks of 128 codes in turn, and their sums are joined in
// order. Lane (g, t) reads word t of rows g and g + 8, and of x the same columns of row g. A sum's order
// depends on K and the groups alone: a column of a product knows nothing of its neighbours. Bound by memory;
// about 1.4 instructions a code. kTiles: eights of rows of x. kSpan: uint32_t of a word in one group.
template <class T, int kTiles, int kSpan>
struct MmaW4A16Kernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 256;
  static constexpr int kWaves = kThreads / kMmaWave;
  static constexpr int kRows = 16;
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kGroups = 4 / kSpan;  // of a block of codes
  static constexpr size_t kSharedBytes = shared_bytes<float>(kWaves * kRows * kColumns);
  using Word = Vec<uint32_t, 4>;

  CodeRows weight;
  Matrix<T> x;         // [m, k] in whole 16-byte words
  Global<float> bias;  // [n] or empty
  Matrix<T> out;       // [m, n]
  int m;               // up to kColumns

  struct Codes {
    Word row[2];  // g and g + 8
    float scale[2][kGroups];
    int zero[2][kGroups];
  };

  DEVICE_FN void operator()() const {
    release_next();
    const int num_blocks = weight.stride / kBlockWords;
    int block = thread_idx() / kMmaWave;
    Codes codes;
    if (block < num_blocks) load(block, codes);  // on its way before x is there
    await_previous();
    FragmentC sums[kTiles] = {};
    while (block < num_blocks) {
      const int next = block + kWaves;
      Codes ahead;
      if (next < num_blocks) load(next, ahead);
      add(block, codes, sums);
      codes = ahead;
      block = next;
    }
    write(sums);
  }

  static DEVICE_FN int g() { return thread_idx() % kMmaWave / 4; }
  static DEVICE_FN int t() { return thread_idx() % 4; }
  DEVICE_FN int row(int half) const {
    const int at = block_idx().x * kRows + g() + 8 * half;
    return at < weight.n ? at : weight.n - 1;
  }

  DEVICE_FN void load(int block, Codes& codes) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      codes.row[half] = weight.row(row(half)).template stream<4>(block * kBlockWords + 4 * t());
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int k0 = block * kBlockCodes + 32 * kSpan * i;
        const int group = k0 < weight.k ? k0 / weight.group_size : 0;  // behind K x is zero
        codes.scale[half][i] = weight.scale(row(half), group);
        codes.zero[half][i] = weight.zero(row(half), group);
      }
    }
  }

  DEVICE_FN void add(int block, const Codes& codes, FragmentC (&sums)[kTiles]) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      FragmentC part[kTiles] = {};
      const uint32_t zero[2] = {zero_pair<T>(codes.zero[0][i]), zero_pair<T>(codes.zero[1][i])};
#pragma unroll
      for (int j = i * kSpan; j < (i + 1) * kSpan; ++j) {
        Word xs[kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          xs[tile] = load_x(8 * tile + g(), block * kBlockCodes + 32 * j + 8 * t());
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          FragmentA a;
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
#pragma unroll
            for (int half = 0; half < 2; ++half)
              a.v[2 * pair + half] = centred_pair<T>(codes.row[half].v[j], 2 * step + pair, zero[half]);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile)
            multiply_add<T>(part[tile], a, {{xs[tile].v[2 * step], xs[tile].v[2 * step + 1]}});
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[tile].v[e] += codes.scale[e / 2][i] * part[tile].v[e];
    }
  }

  DEVICE_FN Word load_x(int i, int k0) const {
    if (i >= m || k0 >= weight.k) return {};
    const Global<T> from = x.row(i) + k0;
    return Global<Word>{reinterpret_cast<Word*>(from.data)}.get(0);
  }

  // Joins the waves in order.
  DEVICE_FN void write(const FragmentC (&sums)[kTiles]) const {
    SharedPool pool;
    const Shared<float> all = pool.take<float>(kWaves * kRows * kColumns);
    const int wave = thread_idx() / kMmaWave;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        all.store<2>((wave * kRows + g() + 8 * half) * kColumns + 8 * tile + 2 * t(),
                     Vec<float, 2>{{sums[tile].v[2 * half], sums[tile].v[2 * half + 1]}});
    block_sync();
    for (int i = thread_idx(); i < kRows * kColumns; i += kThreads) {
      const int at = i % kRows, column = i / kRows;
      const int to = block_idx().x * kRows + at;
      if (column >= m || to >= weight.n) continue;
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kWaves; ++w) sum += all.get((w * kRows + at) * kColumns + column);
      out.row(column).set(to, bias.empty() ? sum : sum + bias.get(to));
    }
  }
};

template <class T, int kTiles, int kSpan>
void run_w4a16_mma(const Context& context, const Matmul& args, const CodeRows& rows) {
  using Kernel = MmaW4A16Kernel<T, kTiles, kSpan>;
  launch(context.device,
         {.name = "w4a16_mma",
          .grid = {ceil_div(rows.n, Kernel::kRows)},
          .shared_bytes = Kernel::kSharedBytes,
          .bytes = static_cast<double>(rows.n) * (4.0 * rows.stride + 2.0 * rows.groups),
          .flops = 2.0 * static_cast<double>(args.x.dim(0)) * rows.n * rows.k},
         Kernel{.weight = rows,
                .x = matrix<T>(args.x),
                .bias = global<float>(args.bias),
                .out = matrix<T>(args.out),
                .m = static_cast<int>(args.x.dim(0))});
}

template <class T>
void run_any_group(const Context& context, const Matmul& args, const CodeRows& rows) {
  const auto run = [&]<int kTiles>() {
    if (rows.group_size % kBlockCodes == 0) return run_w4a16_mma<T, kTiles, 4>(context, args, rows);
    if (rows.group_size % 64 == 0) return run_w4a16_mma<T, kTiles, 2>(context, args, rows);
    run_w4a16_mma<T, kTiles, 1>(context, args, rows);
  };
  if (args.x.dim(0) <= 8)
    run.template operator()<1>();
  else
    run.template operator()<2>();
}

}  // namespace

bool w4a16_mma(const Context& context, const Matmul& args, const CodeRows& rows) {
  if (context.device.info().wave != kMmaWave || !takes_words(args.x)) return false;
  if (args.x.dtype == DType::kBF16) return run_any_group<bf16_t>(context, args, rows), true;
  if (args.x.dtype == DType::kF16) return run_any_group<f16_t>(context, args, rows), true;
  return false;
}

}  // namespace longspan::ops::device
