// out = x W^T for up to 16 rows of x and quantised weights, which are multiplied as they are: the form that
// every card has. Bound by memory, and on small cards by the unpacking: three to four instructions a code.
#include "ops/device/code_rows.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

using CodeWord = Vec<uint32_t, 4>;

// The codes of a 16-byte word as kRuns runs of kRun codes side by side along K, each within one group.
struct Int4Codes {
  static constexpr const char* kName = "w4a16";
  static constexpr bool kOneGroup = false;  // a word's codes have
  static constexpr int kRuns = 4;
  static constexpr int kRun = kInt4Unit / kRuns;
  static constexpr float kScale = 1.0f;
  static DEVICE_FN int first_k(int word, int run) { return word / 4 * kBlockCodes + 32 * run + word % 4 * 8; }
  static DEVICE_FN void unpack(const CodeWord& word, int run, int zero, float (&out)[kRun]) {
    unpack_codes(word.v[run], static_cast<float>(zero), out);
  }
};
struct E4M3Codes {
  static constexpr const char* kName = "w8a16";
  static constexpr bool kOneGroup = true;
  static constexpr int kRuns = 2;  // as one, 16 rows of x want more registers than there are
  static constexpr int kRun = kE4M3Unit / kRuns;
  static constexpr float kScale = kE4M3Scale;  // of what unpack() gives
  static DEVICE_FN int first_k(int word, int run) { return word * kE4M3Unit + run * kRun; }
  static DEVICE_FN void unpack(const CodeWord& word, int run, int, float (&out)[kRun]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float four[4];
      unpack_e4m3(word.v[2 * run + i], four);
#pragma unroll
      for (int e = 0; e < 4; ++e) out[4 * i + e] = four[e];
    }
  }
};

// A wave holds kRows weight rows and kM rows of x. Lane l takes the 16-byte words l, l + kWave, ... of a row;
// the codes of a run are summed in order, scaled, and added; the wave adds its lanes as a butterfly. So the
// tree of a sum depends on K, the groups and the wave's width, neither on kM nor on kRows.
template <int kWave, class Codes, class T, int kM>
struct PackedGemvKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;
  static constexpr int kRows = 2;
  static constexpr int kUnroll = kM == 1 ? 4 : kM <= 4 ? 2 : 1;  // words in flight, a row
  static constexpr int kRowsPerBlock = kThreads / kWave * kRows;
  static constexpr int kRun = Codes::kRun;

  CodeRows weight;
  Matrix<T> x;         // [m, k] in whole 16-byte words
  Global<float> bias;  // [n] or empty
  Matrix<T> out;       // [m, n]
  int m;               // up to kM

  DEVICE_FN void operator()() const {
    release_next();
    const int first = block_idx().x * kRowsPerBlock + Wave<kWave>::index() * kRows;
    const int words = weight.stride / 4;
    float sums[kM][kRows] = {};
    int word = Wave<kWave>::lane();
    // The first words are on their way before x is there.
    CodeWord codes[kUnroll][kRows];
    const bool long_row = word + (kUnroll - 1) * kWave < words;
    if (first < weight.n && long_row) load(first, word, codes);
    await_previous();
    if (first >= weight.n) return;  // whole waves: no collective is left alone
    int scale_rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) scale_rows[r] = row(first, r) / weight.scale_rows;
    if (long_row) {
      add(first, scale_rows, word, codes, sums);
      word += kUnroll * kWave;
    }
    for (; word + (kUnroll - 1) * kWave < words; word += kUnroll * kWave) {
      load(first, word, codes);
      add(first, scale_rows, word, codes, sums);
    }
    if constexpr (kUnroll > 1)
      for (; word < words; word += kWave) {
        CodeWord one[1][kRows];
        load(first, word, one);
        add(first, scale_rows, word, one, sums);
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

  template <int kCount>
  DEVICE_FN void load(int first, int word, CodeWord (&codes)[kCount][kRows]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        codes[u][r] = weight.row(row(first, r)).template stream<4>(4 * (word + u * kWave));
  }
  template <int kCount>
  DEVICE_FN void add(int first, const int (&scale_rows)[kRows], int word,
                     const CodeWord (&codes)[kCount][kRows], float (&sums)[kM][kRows]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u)
#pragma unroll
      for (int run = 0; run < Codes::kRuns; ++run) {
        const int k0 = Codes::first_k(word + u * kWave, run);
        if (k0 >= weight.k) continue;
        const int in_group = Codes::kOneGroup ? Codes::first_k(word + u * kWave, 0) : k0;
        const int group = in_group / weight.group_size;
        float values[kRows][kRun], scales[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          Codes::unpack(codes[u][r], run, weight.zero(row(first, r), group), values[r]);
          scales[r] = Codes::kScale * weight.scale(row(first, r), scale_rows[r], group);
        }
        add_run(k0, values, scales, sums);
      }
  }

  DEVICE_FN void add_run(int k0, const float (&values)[kRows][kRun], const float (&scales)[kRows],
                         float (&sums)[kM][kRows]) const {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const Global<T> from = x.row(i < m ? i : m - 1);
      float run_sums[kRows] = {};
#pragma unroll
      for (int w = 0; w < kRun; w += kVec<T>) {
        Vec<T, kVec<T>> word{};
        if (k0 + w < weight.k) word = from.template load<kVec<T>>(k0 + w);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e)
#pragma unroll
          for (int r = 0; r < kRows; ++r) run_sums[r] += to_float(word.v[e]) * values[r][w + e];
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[i][r] += scales[r] * run_sums[r];
    }
  }
};

template <int kWave, class Codes, class T, int kM>
void run_packed_gemv(const Context& context, const Matmul& args, const CodeRows& rows) {
  using Kernel = PackedGemvKernel<kWave, Codes, T, kM>;
  launch(context.device,
         {.name = Codes::kName,
          .grid = {ceil_div(rows.n, Kernel::kRowsPerBlock)},
          .bytes = rows.n * rows.row_bytes(),
          .flops = 2.0 * static_cast<double>(args.x.dim(0)) * rows.n * rows.k},
         Kernel{.weight = rows,
                .x = matrix<T>(args.x),
                .bias = global<float>(args.bias),
                .out = matrix<T>(args.out),
                .m = static_cast<int>(args.x.dim(0))});
}

template <class Codes>
void run_any_rows(const Context& context, const Matmul& args, const CodeRows& rows) {
  dispatch_element(args.x.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      const Index m = args.x.dim(0);
      if (m == 1)
        run_packed_gemv<kWave, Codes, T, 1>(context, args, rows);
      else if (m <= 4)
        run_packed_gemv<kWave, Codes, T, 4>(context, args, rows);
      else if (m <= 8)
        run_packed_gemv<kWave, Codes, T, 8>(context, args, rows);
      else
        run_packed_gemv<kWave, Codes, T, 16>(context, args, rows);
    });
  });
}

}  // namespace

void packed_gemv(const Context& context, const Matmul& args, const CodeRows& rows, CodeKind kind) {
  if (kind == CodeKind::kInt4) return run_any_rows<Int4Codes>(context, args, rows);
  run_any_rows<E4M3Codes>(context, args, rows);
}

}  // namespace longspan::ops::device
