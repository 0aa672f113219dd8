// The kernel of gemv_mma.cc, for other launches to share: out = x W^T for up to 16 rows of x, 16-bit floats,
// on matrix units.
#pragma once

#include <algorithm>

#include "ops/device/activation.h"
#include "ops/device/code_rows.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/mma.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {

constexpr int kGemvWaves = 4;      // of a block; a sum's order follows from it
constexpr int kMmaRows = 8;        // of the weight, in one product
constexpr int kRowWords = 16;      // of a row, 16 bytes each, that a wave takes at a time
constexpr int kScaledCodes = 128;  // side by side, that have one scale

// What a 16-byte word of a row holds: kSteps times four elements a lane of one product, and the scales that
// act on the sums of half a wave's words.
template <class T>
struct PlainRows {
  static constexpr const char* kName = "gemv_mma";
  static constexpr const char* kSwiGluName = "gemv_mma_swiglu";
  static constexpr int kSteps = 2;
  static constexpr bool kScaled = false;
  static constexpr int kScalesOfTile = 1;
  static DEVICE_FN FragmentB operand(const Vec<uint32_t, 4>& word, int step) {
    return {{word.v[2 * step], word.v[2 * step + 1]}};
  }
};
// kTileScales: a tile's rows have the same scales, one for each run of kScaledCodes.
template <class T, bool kTileScales>
struct E4M3Rows {
  static constexpr const char* kName = "w8a16_mma";
  static constexpr const char* kSwiGluName = "w8a16_mma_swiglu";
  static constexpr int kSteps = 4;
  static constexpr bool kScaled = true;
  static constexpr int kScalesOfTile = kTileScales ? 1 : 2;  // that a lane needs: of its columns
  CodeRows rows;
  int halves_per_group;  // a group's runs of kScaledCodes
  static DEVICE_FN FragmentB operand(const Vec<uint32_t, 4>& word, int step) {
    return {{unscaled_pair<T>(word.v[step]), unscaled_pair<T>(word.v[step] >> 16)}};
  }
  // Of a row and the run of kScaledCodes numbered `half`. (Instructions bound the loop with anything more.)
  DEVICE_FN float scale(int row, int scale_row, int half) const {
    if constexpr (kTileScales)
      return rows.scales.at(scale_row * rows.groups + (half < rows.groups ? half : rows.groups - 1));
    const int group = half / halves_per_group;
    return rows.scale(row, scale_row, group < rows.groups ? group : rows.groups - 1);
  }
};

// Block: kTiles times 8 rows of the weight. Its waves take blocks of 16 words in turn, each with kStages of
// them on the way through shared memory, where copies are as long as rows allow; the waves' sums are joined
// in order. Lane (g, t) multiplies words t, t + 4, t + 8 and t + 12 of row g of each tile with the same
// elements of rows g and g + 8 of x: a permutation of K that both sides share. A sum's order depends on K
// alone: a row of x knows nothing of its neighbours. On an H200 a decode step of one row is no slower than by
// gemv.cc's kernel, and sixteen rows take 0.27 to 0.31 of what they take there.
// (Blocks must not ask for more shared memory than they use, to be spread evenly, say: a kernel with another
// division of a unit's memory waits until the unit is empty, which cost 9 % of a decode step.)
// kHalves: eights of rows of x. With kSwiGlu tile 0 has gate rows, tile 1 their up rows, n further down, and
// out gets their product.
template <class T, class Rows, int kTiles, int kStages, int kHalves, bool kSwiGlu>
struct MmaGemvKernel {
  static_assert(!kSwiGlu || kTiles == 2);
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kGemvWaves * kMmaWave;
  static constexpr int kRows = kTiles * kMmaRows;              // of the weight
  static constexpr int kOutputs = kSwiGlu ? kMmaRows : kRows;  // of a block, for a row of x
  static constexpr int kColumns = 8 * kHalves;                 // of the joined sums: rows of x
  static constexpr int kPitch = kRows + 4;
  static constexpr int kStageInts = kRows * kRowWords * 4;
  static constexpr size_t kSharedBytes = std::max(shared_bytes<uint32_t>(kGemvWaves * kStages * kStageInts),
                                                  shared_bytes<float>(kGemvWaves* kColumns* kPitch));
  static constexpr int kXWords = Rows::kSteps / 2;  // of x, for one of the weight
  using Word = Vec<uint32_t, 4>;
  using XWords = Word[kHalves][4][kXWords];
  static constexpr int kTileScales = Rows::kScalesOfTile;
  using Scales = float[2][kTiles][kTileScales];  // of a block's halves, for the lane's columns of each tile

  Rows form;
  Matrix<uint32_t> x;       // T [m, k] in whole words
  Matrix<uint32_t> weight;  // [n, k] in whole words, zero-padded; [2 n, k] with kSwiGlu
  Global<float> bias;       // [n] or empty
  Matrix<T> out;            // [m, n]
  int m;                    // up to kColumns
  int n;
  int words;            // of a row
  int x_words;          // of a row of x
  int first_block = 0;  // of the launch that is this kernel's

  DEVICE_FN void operator()() const {
    release_next();
    SharedPool pool;
    const Shared<uint32_t> memory = pool.take<uint32_t>(static_cast<int>(kSharedBytes / 4));
    const Shared<uint32_t> ring = memory + wave() * kStages * kStageInts;
    const int num_blocks = (words + kRowWords - 1) / kRowWords;
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage)
      copy(wave() + stage * kGemvWaves, num_blocks, ring + stage * kStageInts);
    await_previous();
    Global<uint32_t> columns[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = 8 * half + g();  // one that nobody asks for may be another's
      columns[half] = x.row(row < m ? row : 0) + 4 * kXWords * t();
    }
    int scale_rows[kTiles][kTileScales] = {};
    if constexpr (Rows::kScaled)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int c = 0; c < kTileScales; ++c)
          scale_rows[tile][c] = column_row(tile, c) / form.rows.scale_rows;
    FragmentC sums[kTiles] = {};
    for (int first = wave(); first < num_blocks; first += kStages * kGemvWaves)
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        const int block = first + stage * kGemvWaves;
        if (block >= num_blocks) break;
        XWords xs;
        load_x(columns, block, xs);
        Scales scales = {};
        if constexpr (Rows::kScaled) load_scales(block, scale_rows, scales);
        wait_copies<kStages - 2>();
        wave_sync();  // words come from other lanes, and what the free stage held was read
        copy(block + (kStages - 1) * kGemvWaves, num_blocks,
             ring + (stage + kStages - 1) % kStages * kStageInts);
        add(ring + stage * kStageInts, scales, xs, sums);
      }
    wait_copies<0>();
    block_sync();  // the sums lie where the words lay
    write(sums, {reinterpret_cast<float*>(memory.data)});
  }

  static DEVICE_FN int wave() { return thread_idx() / kMmaWave; }
  static DEVICE_FN int lane() { return thread_idx() % kMmaWave; }
  static DEVICE_FN int g() { return lane() / 4; }
  static DEVICE_FN int t() { return lane() % 4; }

  DEVICE_FN int own_block() const { return block_idx().x - first_block; }

  // Row i of the block's; one that there is not is another's.
  DEVICE_FN int64_t weight_row(int i) const {
    const int to = own_block() * kOutputs + i % kOutputs;
    return (to < n ? to : n - 1) + (kSwiGlu ? i / kOutputs * n : 0);
  }

  // The row of the weight that is the lane's column c of a tile's sums.
  DEVICE_FN int column_row(int tile, int c) const {
    return static_cast<int>(weight_row(tile * kMmaRows + 2 * t() + c));
  }

  // Where word `word` of row `row` lies in a stage: lanes that read together meet different banks.
  static DEVICE_FN int place(int row, int word) { return (row * kRowWords + (word ^ row % 2 * 4)) * 4; }

  // Half a wave a row. Of a block that there is not, an empty commit; zeros behind the rows' end.
  DEVICE_FN void copy(int block, int num_blocks, Shared<uint32_t> to) const {
    if (block < num_blocks) {
      const int word = lane() % kRowWords;
      const bool present = block * kRowWords + word < words;
      const int at = present ? 4 * (block * kRowWords + word) : 0;
#pragma unroll
      for (int i = 0; i < kRows; i += 2) {
        const int row = i + lane() / kRowWords;
        copy_async(to.data + place(row, word), (weight.row(weight_row(row)) + at).data, present);
      }
    }
    commit_copies();
  }

  // The lane's words of a block of x, zeros behind the rows' end.
  DEVICE_FN void load_x(const Global<uint32_t> (&from)[kHalves], int block, XWords& to) const {
    const int first = block * kRowWords * kXWords;
    if (first + kRowWords * kXWords <= x_words) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kXWords; ++j)
          to[i][j / kXWords][j % kXWords] = from[i].template load<4>(4 * (first + x_word(j)));
    } else {
#pragma unroll
      for (int i = 0; i < kHalves; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kXWords; ++j) {
          Word word{};
          if (first + x_word(j) + kXWords * t() < x_words)
            word = from[i].template load<4>(4 * (first + x_word(j)));
          to[i][j / kXWords][j % kXWords] = word;
        }
    }
  }
  DEVICE_FN void load_scales(int block, const int (&scale_rows)[kTiles][kTileScales], Scales& scales) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int c = 0; c < kTileScales; ++c)
          scales[half][tile][c] = form.scale(column_row(tile, c), scale_rows[tile][c], 2 * block + half);
  }
  static constexpr DEVICE_FN int x_word(int j) { return j / kXWords * 4 * kXWords + j % kXWords; }

  DEVICE_FN void add(Shared<uint32_t> from, const Scales& scales, const XWords& xs,
                     FragmentC (&sums)[kTiles]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (Rows::kScaled) {
        FragmentC part[kTiles] = {};
        add_words(from, half, xs, part);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            sums[tile].v[e] += scales[half][tile][e % kTileScales] * part[tile].v[e];
      } else {
        add_words(from, half, xs, sums);
      }
    }
  }

  // Half of a block's words: two of a lane's four.
  DEVICE_FN void add_words(Shared<uint32_t> from, int half, const XWords& xs,
                           FragmentC (&sums)[kTiles]) const {
#pragma unroll
    for (int j = 2 * half; j < 2 * half + 2; ++j) {
      Word w[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        w[tile] = from.template load<4>(place(tile * kMmaRows + g(), 4 * j + t()));
#pragma unroll
      for (int step = 0; step < Rows::kSteps; ++step) {
        FragmentA a = {};
#pragma unroll
        for (int i = 0; i < kHalves; ++i)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
            a.v[2 * pair + i] = xs[i][j][step / 2].v[2 * (step % 2) + pair];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          multiply_add<T>(sums[tile], a, Rows::operand(w[tile], step));
      }
    }
  }

  // Joins the waves in order.
  DEVICE_FN void write(const FragmentC (&sums)[kTiles], Shared<float> all) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        all.store<2>((wave() * kColumns + 8 * half + g()) * kPitch + tile * kMmaRows + 2 * t(),
                     Vec<float, 2>{{sums[tile].v[2 * half], sums[tile].v[2 * half + 1]}});
    block_sync();
    for (int i = thread_idx(); i < kOutputs * m; i += kThreads) {
      const int at = i % kOutputs, row = i / kOutputs;
      const int to = own_block() * kOutputs + at;
      if (to >= n) continue;
      const float sum = joined(all, row, at);
      if constexpr (kSwiGlu)
        out.row(row).set(to, swiglu_of(rounded<T>(sum), rounded<T>(joined(all, row, kMmaRows + at))));
      else
        out.row(row).set(to, bias.empty() ? sum : sum + bias.get(to));
    }
  }
  static DEVICE_FN float joined(Shared<float> all, int row, int at) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kGemvWaves; ++w) sum += all.get((w * kColumns + row) * kPitch + at);
    return sum;
  }
};

template <class T>
Matrix<uint32_t> words_of(const Matrix<T>& rows) {
  return {{reinterpret_cast<uint32_t*>(rows.data.data)}, rows.stride / 2};
}

// A weight as the kernels take it.
template <class Rows>
struct Streamed {
  Rows form;
  Matrix<uint32_t> rows;
  int words;
  double bytes;
};

template <class Kernel, class T, class Rows>
Kernel gemv_kernel(const Matmul& args, const Streamed<Rows>& weight) {
  return {.form = weight.form,
          .x = words_of(matrix<T>(args.x)),
          .weight = weight.rows,
          .bias = global<float>(args.bias),
          .out = matrix<T>(args.out),
          .m = static_cast<int>(args.x.dim(0)),
          .n = static_cast<int>(args.out.dim(1)),
          .words = weight.words,
          .x_words = ceil_div(args.x.dim(1), kVec<T>)};
}

template <class T>
Streamed<PlainRows<T>> plain_rows(const Matmul& args) {
  const DeviceWeight& weight = device_weight(args.weight);
  return {.rows = words_of(matrix<T>(weight.view())),
          .words = static_cast<int>(weight.stride() / kVec<T>),
          .bytes = static_cast<double>(weight.size_bytes())};
}

// Two kernels in one launch: first the blocks of a few rows of a weight, then the many of another.
template <class Narrow, class Wide>
struct SideBySideKernel {
  static_assert(Narrow::kThreads == Wide::kThreads);
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = Wide::kThreads;
  static constexpr size_t kSharedBytes = std::max(Narrow::kSharedBytes, Wide::kSharedBytes);

  Narrow narrow;
  Wide wide;

  DEVICE_FN void operator()() const {
    if (block_idx().x < wide.first_block)
      narrow();
    else
      wide();
  }
};

inline int num_narrow_blocks(const Matmul& narrow) { return ceil_div(narrow.out.dim(1), kMmaRows); }

// Launches `wide` and, where there is one, `beside`: the product of the same rows of x with a plain weight.
// Its blocks are first, as each has more to read.
template <class T, int kHalves, class Wide>
void launch_beside(const Context& context, Launch how, Wide wide, const Matmul* beside) {
  if (beside == nullptr) return launch(context.device, how, wide);
  using Narrow = MmaGemvKernel<T, PlainRows<T>, 1, 3, kHalves, false>;
  using Both = SideBySideKernel<Narrow, Wide>;
  const Streamed<PlainRows<T>> weight = plain_rows<T>(*beside);
  static_assert(Narrow::kOutputs == kMmaRows);
  wide.first_block = num_narrow_blocks(*beside);
  how.grid.x += wide.first_block;
  how.shared_bytes = std::max(how.shared_bytes, Narrow::kSharedBytes);
  how.bytes += weight.bytes;
  how.flops += 2.0 * static_cast<double>(beside->x.dim(0) * beside->weight->out_features *
                                         beside->weight->in_features);
  launch(context.device, how, Both{gemv_kernel<Narrow, T>(*beside, weight), wide});
}

}  // namespace longspan::ops::device
