// out = x W^T for few rows of x: weights stream by once, in 16-byte words. Bound by memory.
#include <algorithm>

#include "ops/device/activation.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

// A wave holds kRows weight rows and kM rows of x. Lane l takes the words l, l + kWave, ... of a row, adds
// their elements in order, and the wave adds its lanes as a butterfly: the tree of a sum depends on K and the
// wave's width alone, neither on kM nor on kRows. x stays in the first-level cache.
// With kSwiGlu the rows of a wave are a gate row and its up row, n further down, and out gets their product.
template <int kWave, class T, int kM, bool kSwiGlu>
struct GemvKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;  // small blocks: 5,120 rows still spread evenly
  static constexpr int kRows = 2;
  static constexpr int kUnroll = kM <= 4 ? 4 : 2;       // words in flight, a row
  static constexpr int kOutputs = kSwiGlu ? 1 : kRows;  // of a wave
  static constexpr int kOutputsPerBlock = kThreads / kWave * kOutputs;
  using Word = Vec<T, kVec<T>>;

  Matrix<T> x;         // [m, k] in whole words
  Matrix<T> weight;    // [n, k] in whole words, zero-padded; [2 n, k] with kSwiGlu
  Global<float> bias;  // [n] or empty
  Matrix<T> out;       // [m, n]
  int m;               // up to kM
  int n;
  int words;  // of a row

  DEVICE_FN void operator()() const {
    release_next();
    const int first = block_idx().x * kOutputsPerBlock + Wave<kWave>::index() * kOutputs;
    float sums[kM][kRows] = {};
    int word = Wave<kWave>::lane();
    // The first words are on their way before x is there.
    Word w[kUnroll][kRows];
    const bool long_row = word + (kUnroll - 1) * kWave < words;
    if (first < n && long_row) load(first, word, w);
    await_previous();
    if (first >= n) return;  // whole waves: no collective is left alone
    if (long_row) {
      add(word, w, sums);
      word += kUnroll * kWave;
    }
    for (; word + (kUnroll - 1) * kWave < words; word += kUnroll * kWave) {
      load(first, word, w);
      add(word, w, sums);
    }
    for (; word < words; word += kWave) {
      Word one[1][kRows];
      load(first, word, one);
      add(word, one, sums);
    }
    for (int i = 0; i < kM; ++i) {
      float row_sums[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) row_sums[r] = Wave<kWave>::sum(sums[i][r]);
      if (Wave<kWave>::lane() == 0 && i < m) write(i, first, row_sums);
    }
  }

  DEVICE_FN void write(int i, int first, const float (&row_sums)[kRows]) const {
    if constexpr (kSwiGlu) {
      out.row(i).set(first, swiglu_of(rounded<T>(row_sums[0]), rounded<T>(row_sums[1])));
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (first + r < n)
          out.row(i).set(first + r, bias.empty() ? row_sums[r] : row_sums[r] + bias.get(first + r));
    }
  }

  // Row r of the wave's; one that there is not is another's.
  DEVICE_FN Global<T> row(int first, int r) const {
    if constexpr (kSwiGlu) return weight.row(first + r * n);
    return weight.row(first + r < n ? first + r : n - 1);
  }

  template <int kCount>
  DEVICE_FN void load(int first, int word, Word (&w)[kCount][kRows]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        w[u][r] = row(first, r).template stream<kVec<T>>(static_cast<int64_t>(word + u * kWave) * kVec<T>);
  }
  template <int kCount>
  DEVICE_FN void add(int word, const Word (&w)[kCount][kRows], float (&sums)[kM][kRows]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u)
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        const Word xs =
            x.row(i < m ? i : m - 1).template load<kVec<T>>(static_cast<int64_t>(word + u * kWave) * kVec<T>);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e)
#pragma unroll
          for (int r = 0; r < kRows; ++r) sums[i][r] += to_float(xs.v[e]) * to_float(w[u][r].v[e]);
      }
  }
};

template <int kWave, class T, int kM, bool kSwiGlu>
void gemv_rows(const Context& context, const Matmul& args) {
  using Kernel = GemvKernel<kWave, T, kM, kSwiGlu>;
  const DeviceWeight& weight = device_weight(args.weight);
  const Index n = args.out.dim(1);
  launch(context.device,
         {.name = kSwiGlu ? "gemv_swiglu" : "gemv",
          .grid = {ceil_div(n, Kernel::kOutputsPerBlock)},
          .bytes = static_cast<double>(weight.size_bytes()),
          .flops = 2.0 * static_cast<double>(args.x.dim(0) * weight.out_features * weight.in_features)},
         Kernel{.x = matrix<T>(args.x),
                .weight = matrix<T>(weight.view()),
                .bias = global<float>(args.bias),
                .out = matrix<T>(args.out),
                .m = static_cast<int>(args.x.dim(0)),
                .n = static_cast<int>(n),
                .words = static_cast<int>(weight.stride() / kVec<T>)});
}

template <bool kSwiGlu>
void gemv_up_to_16(const Context& context, const Matmul& part) {
  if (kSwiGlu ? gemv_mma_swiglu(context, part) : gemv_mma(context, part)) return;
  dispatch_element(part.x.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      const Index m = part.x.dim(0);
      if (m == 1)
        gemv_rows<kWave, T, 1, kSwiGlu>(context, part);
      else if (m == 2)
        gemv_rows<kWave, T, 2, kSwiGlu>(context, part);
      else if (m <= 4)
        gemv_rows<kWave, T, 4, kSwiGlu>(context, part);
      else if (m <= 8)
        gemv_rows<kWave, T, 8, kSwiGlu>(context, part);
      else
        gemv_rows<kWave, T, 16, kSwiGlu>(context, part);
    });
  });
}

template <bool kSwiGlu>
void gemv_any(const Context& context, const Matmul& args) {
  for (Index begin = 0; begin < args.x.dim(0); begin += kFusedRows) {
    const Index m = std::min(kFusedRows, args.x.dim(0) - begin);
    Matmul part = args;
    part.x = args.x.rows(begin, m);
    part.out = args.out.rows(begin, m);
    gemv_up_to_16<kSwiGlu>(context, part);
  }
}

}  // namespace

void gemv(const Context& context, const Matmul& args) { gemv_any<false>(context, args); }
void gemv_swiglu(const Context& context, const Matmul& args) { gemv_any<true>(context, args); }

}  // namespace longspan::ops::device
