// out = x W^T for up to 16 rows of x and 4-bit weights, which are multiplied as they are: the form that every
// card has. Bound by memory, and on small cards by the unpacking: about four instructions a code.
#include "ops/device/code_rows.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

// A wave holds kRows weight rows and kM rows of x. Lane l takes the 16-byte words l, l + kWave, ... of a row;
// eight codes are summed in order, scaled, and added; the wave adds its lanes as a butterfly. So the tree of
// a sum depends on K, the groups and the wave's width, neither on kM nor on kRows.
template <int kWave, class T, int kM>
struct W4A16Kernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;
  static constexpr int kRows = 2;
  static constexpr int kRowsPerBlock = kThreads / kWave * kRows;
  using Word = Vec<uint32_t, 4>;

  CodeRows weight;
  Matrix<T> x;         // [m, k] in whole 16-byte words
  Global<float> bias;  // [n] or empty
  Matrix<T> out;       // [m, n]
  int m;               // up to kM

  DEVICE_FN void operator()() const {
    release_next();
    const int first = block_idx().x * kRowsPerBlock + Wave<kWave>::index() * kRows;
    const int words = weight.stride / 4;
    await_previous();
    if (first >= weight.n) return;  // whole waves: no collective is left alone
    float sums[kM][kRows] = {};
    for (int word = Wave<kWave>::lane(); word < words; word += kWave) {
      Word codes[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) codes[r] = code_word(row(first, r), word);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k0 = word / 4 * kBlockCodes + 32 * j + word % 4 * 8;
        if (k0 < weight.k) add(first, k0, {codes[0].v[j], codes[1].v[j]}, sums);
      }
    }
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = Wave<kWave>::sum(sums[i][r]);
        if (Wave<kWave>::lane() != 0 || i >= m || first + r >= weight.n) continue;
        out.row(i).set(first + r, bias.empty() ? sum : sum + bias.get(first + r));
      }
  }

  // Row r of the wave's; one that there is not is another's.
  DEVICE_FN int row(int first, int r) const { return first + r < weight.n ? first + r : weight.n - 1; }
  DEVICE_FN Word code_word(int at, int word) const { return weight.row(at).template stream<4>(4 * word); }

  struct Octets {
    uint32_t of_row[kRows];
  };
  DEVICE_FN void add(int first, int k0, const Octets& octets, float (&sums)[kM][kRows]) const {
    const int group = k0 / weight.group_size;
    float codes[kRows][8], scales[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      unpack_codes(octets.of_row[r], static_cast<float>(weight.zero(row(first, r), group)), codes[r]);
      scales[r] = weight.scale(row(first, r), group);
    }
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      float xs[8];
      load_x(i < m ? i : m - 1, k0, xs);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += xs[e] * codes[r][e];
        sums[i][r] += scales[r] * sum;
      }
    }
  }

  DEVICE_FN void load_x(int i, int k0, float (&xs)[8]) const {
#pragma unroll
    for (int w = 0; w < 8 / kVec<T>; ++w) {
      Vec<T, kVec<T>> word{};
      if (k0 + w * kVec<T> < weight.k) word = x.row(i).template load<kVec<T>>(k0 + w * kVec<T>);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) xs[w * kVec<T> + e] = to_float(word.v[e]);
    }
  }
};

template <int kWave, class T, int kM>
void run_w4a16(const Context& context, const Matmul& args, const CodeRows& rows) {
  using Kernel = W4A16Kernel<kWave, T, kM>;
  launch(context.device,
         {.name = "w4a16",
          .grid = {ceil_div(rows.n, Kernel::kRowsPerBlock)},
          .bytes = static_cast<double>(rows.n) * (4.0 * rows.stride + 2.0 * rows.groups),
          .flops = 2.0 * static_cast<double>(args.x.dim(0)) * rows.n * rows.k},
         Kernel{.weight = rows,
                .x = matrix<T>(args.x),
                .bias = global<float>(args.bias),
                .out = matrix<T>(args.out),
                .m = static_cast<int>(args.x.dim(0))});
}

}  // namespace

void w4a16(const Context& context, const Matmul& args, const CodeRows& rows) {
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      const Index m = args.x.dim(0);
      if (m == 1)
        run_w4a16<kWave, T, 1>(context, args, rows);
      else if (m <= 4)
        run_w4a16<kWave, T, 4>(context, args, rows);
      else
        run_w4a16<kWave, T, 16>(context, args, rows);
    });
  });
}

}  // namespace longspan::ops::device
