// out = x W^T for up to 16 rows of x and 4-bit weights on matrix units: 16-bit floats. Weights are the rows
// of the products and x their columns, so that one to eight rows of x cost the same; codes become exact
// 16-bit numbers and scales act on the fp32 sum of a group. packed_gemv.cc takes what this one does not.
#include "ops/device/gemv_mma.h"

namespace longspan::ops::device {
namespace {

template <class T>
DEVICE_FN uint32_t subtract_pairs(uint32_t a, uint32_t b);
template <>
DEVICE_FN uint32_t subtract_pairs<bf16_t>(uint32_t a, uint32_t b) {
  return subtract_bf16_pairs(a, b);
}
template <>
DEVICE_FN uint32_t subtract_pairs<f16_t>(uint32_t a, uint32_t b) {
  return subtract_f16_pairs(a, b);
}
// What code_pair() and the like of f16 add to a code, twice: 16-bit floats whose last place is 1 there.
template <class T>
constexpr uint32_t kOffsetPair = 0;
template <>
constexpr uint32_t kOffsetPair<bf16_t> = 0x43004300u;  // 128
template <>
constexpr uint32_t kOffsetPair<f16_t> = 0x64006400u;  // 1024

// Block: a tile of kOperands times 16 rows of the weight, side by side or, of a gate and up, eights of both
// in turn. Its waves take the blocks of 128 codes in turn, each with kStages of them on the way through
// shared memory, and their sums are joined in order. Lane (g, t) multiplies word t of row g of each eight
// with the same columns of row g of x. A sum's order depends on the weight and the card alone: a column of a
// product knows nothing of its neighbours. kTiles: eights of rows of x; with two, what all blocks read of x
// bounds the product, and two operands halve that. kSpan: uint32_t of a word in one group; with less than
// four, two operands want too many registers. With kSwiGlu out gets the product of a gate and its up. Bound
// by memory, if just: 160 instructions for 1 KB of codes. One row of x on an H200: 60 to 82 % of its copy
// speed. Nothing was gained by sums of x for the zeros in place of the subtraction, blocks that stay for
// several tiles, codes in tiles of 1 KB, x in shared memory or loaded a block ahead, more stages, the
// weight's rows as columns of the products, or tiles of eight rows where whole ones do not spread evenly.
template <class T, int kTiles, int kSpan, int kWaves, bool kSwiGlu>
struct MmaW4A16Kernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = kWaves * kMmaWave;
  static constexpr int kStages = 3;
  static constexpr int kOperands = kSpan == 4 ? kTiles : 1;  // of 16 rows, in products with the same x
  static constexpr int kEights = 2 * kOperands;
  static constexpr int kRows = 8 * kEights;
  static constexpr int kOutputs = kSwiGlu ? kRows / 2 : kRows;
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kGroups = 4 / kSpan;  // of a block of codes
  static constexpr int kTileWords = kRows * kBlockWords;
  static constexpr int kAffineWords = kOperands * kTileRows;  // of a group
  static constexpr int kStageWords = kTileWords + kAffineWords * kGroups;
  static constexpr size_t kSharedBytes =
      shared_bytes<uint32_t>(kWaves * kStages * kStageWords) + shared_bytes<float>(kWaves * kRows * kColumns);
  using Word = Vec<uint32_t, 4>;
  using Sums = FragmentC[kTiles][kOperands];

  CodeRows weight;
  Matrix<T> x;          // [m, k] in whole 16-byte words
  Global<float> bias;   // [n] or empty
  Matrix<T> out;        // [m, n], [m, n / 2] with kSwiGlu
  int m;                // up to kColumns
  int first_block = 0;  // of the launch that is this kernel's
  // Where the compiler does not see it: it takes two instructions where two constants meet.
  uint32_t offset = kOffsetPair<T>;

  // What a lane copies of the wave's next block.
  struct Source {
    Global<Word> codes[kEights];  // of its rows
    Global<uint32_t> affine;      // 16 bytes of a group, of the first 4 kOperands kGroups lanes
  };

  DEVICE_FN void operator()() const {
    release_next();
    SharedPool pool;
    const Shared<uint32_t> ring =
        pool.take<uint32_t>(kWaves * kStages * kStageWords) + wave() * kStages * kStageWords;
    const Shared<float> all = pool.take<float>(kWaves * kRows * kColumns);
    const int num_blocks = weight.stride / kBlockWords;
    Source source = first_source();
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage)
      copy(source, wave() + stage * kWaves < num_blocks, ring + stage * kStageWords);
    await_previous();
    Global<Word> columns[kTiles];
    for (int tile = 0; tile < kTiles; ++tile) columns[tile] = first_columns(8 * tile + g());
    Sums sums = {};
    for (int first = wave(); first < num_blocks; first += kStages * kWaves)
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        const int block = first + stage * kWaves;
        if (block >= num_blocks) break;
        Word xs[kTiles][4];
        load_x(columns, block, xs);
        wait_copies<kStages - 2>();
        wave_sync();  // the groups' words come from other lanes, and what the free stage held was read
        copy(source, block + (kStages - 1) * kWaves < num_blocks,
             ring + (stage + kStages - 1) % kStages * kStageWords);
        add(ring + stage * kStageWords, xs, sums);
      }
    write(sums, all);
  }

  static DEVICE_FN int wave() { return thread_idx() / kMmaWave; }
  static DEVICE_FN int lane() { return thread_idx() % kMmaWave; }
  static DEVICE_FN int g() { return lane() / 4; }
  static DEVICE_FN int t() { return lane() % 4; }
  static DEVICE_FN Global<Word> words(const void* data) {
    return {static_cast<Word*>(const_cast<void*>(data))};
  }

  DEVICE_FN int tile_idx() const { return block_idx().x - first_block; }
  // Row i of the tile; weight.n or more: there is none.
  DEVICE_FN int row(int i) const {
    if (weight.pair_rows != 0) {
      const int gate = (tile_idx() * kOperands + i / kTileRows) * 8 + i % 8;
      return gate < weight.pair_rows ? gate + i / 8 % 2 * weight.pair_rows : weight.n;
    }
    return tile_idx() * kRows + i;
  }

  DEVICE_FN Source first_source() const {
    Source source;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const int from = row(g() + 8 * eight);  // one that there is not may be another's
      source.codes[eight] =
          words(weight.row(from < weight.n ? from : weight.n - 1).data) + (wave() * kBlockWords / 4 + t());
    }
    constexpr int kLanes = 4 * kOperands;  // of a group
    const int column = tile_idx() * kRows + 4 * (lane() % kLanes);
    const int last = static_cast<int>(weight.affine.stride) - 4;  // for rows that there are not, any will do
    source.affine = weight.affine.row(wave() * kGroups + lane() / kLanes) + (column < last ? column : last);
    return source;
  }

  // Takes the source one block of the wave further; of one that there is not, an empty commit.
  DEVICE_FN void copy(Source& source, bool present, Shared<uint32_t> to) const {
    if (present) {
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        copy_async(to.data + (eight * kMmaWave + lane()) * 4, source.codes[eight].data, true);
        source.codes[eight] = source.codes[eight] + kWaves * kBlockWords / 4;
      }
      if (lane() < 4 * kOperands * kGroups)
        copy_async(to.data + kTileWords + 4 * lane(), source.affine.data, true);
      source.affine = source.affine + kWaves * kGroups * weight.affine.stride;
    }
    commit_copies();
  }

  // Where a row's words begin; a column that nobody asks for may be another's.
  DEVICE_FN Global<Word> first_columns(int row) const {
    return words(x.row(row < m ? row : 0).data) + (wave() * kBlockCodes / kVec<T> + t());
  }

  // The lane's words of a block, and the columns one block of the wave further. Zeros behind K.
  DEVICE_FN void load_x(Global<Word> (&columns)[kTiles], int block, Word (&xs)[kTiles][4]) const {
    const bool whole = (block + 1) * kBlockCodes <= weight.k;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (whole) {
#pragma unroll
        for (int j = 0; j < 4; ++j) xs[tile][j] = columns[tile].get(4 * j);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          xs[tile][j] = {};
          if (block * kBlockCodes + 32 * j + 8 * t() < weight.k) xs[tile][j] = columns[tile].get(4 * j);
        }
      }
      columns[tile] = columns[tile] + kWaves * kBlockCodes / kVec<T>;
    }
  }

  // Codes 2 i and 2 i + 1 of a word less their zero.
  DEVICE_FN uint32_t centred(uint32_t word, int i, uint32_t zero) const {
    return subtract_pairs<T>(((word >> (4 * i)) & 0x000f000fu) | offset, zero);
  }

  DEVICE_FN void add(Shared<uint32_t> from, const Word (&xs)[kTiles][4], Sums& sums) const {
    Word codes[kEights];
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight)
      codes[eight] = from.load<4>(4 * (eight * kMmaWave + lane()));
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      Sums part = {};
      uint32_t affine[kEights], zero[kEights];
#pragma unroll
      for (int o = 0; o < kOperands; ++o) {
        const Vec<uint32_t, 2> both = from.load<2>(kTileWords + kAffineWords * i + kTileRows * o + 2 * g());
        affine[2 * o] = both.v[0];
        affine[2 * o + 1] = both.v[1];
      }
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight)
        zero[eight] = offset + affine_zero(affine[eight]) * 0x00010001u;
#pragma unroll
      for (int j = i * kSpan; j < (i + 1) * kSpan; ++j)
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int o = 0; o < kOperands; ++o) {
            FragmentA a;
#pragma unroll
            for (int pair = 0; pair < 2; ++pair)
#pragma unroll
              for (int eight = 2 * o; eight < 2 * o + 2; ++eight)
                a.v[2 * pair + eight % 2] = centred(codes[eight].v[j], 2 * step + pair, zero[eight]);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
              multiply_add<T>(part[tile][o], a, {{xs[tile][j].v[2 * step], xs[tile][j].v[2 * step + 1]}});
          }
      float scale[kEights];
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) scale[eight] = weight.affine_scale(affine[eight]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int e = 0; e < 2 * kEights; ++e)
          sums[tile][e / 4].v[e % 4] += scale[e / 2] * part[tile][e / 4].v[e % 4];
    }
  }

  // Joins the waves in order.
  DEVICE_FN void write(const Sums& sums, Shared<float> all) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight)
        all.store<2>((wave() * kRows + g() + 8 * eight) * kColumns + 8 * tile + 2 * t(),
                     Vec<float, 2>{{sums[tile][eight / 2].v[2 * (eight % 2)],
                                    sums[tile][eight / 2].v[2 * (eight % 2) + 1]}});
    block_sync();
    for (int i = thread_idx(); i < kOutputs * m; i += kThreads) {
      const int output = i % kOutputs, column = i / kOutputs;
      const int at = kSwiGlu ? output / 8 * kTileRows + output % 8 : output;
      const int to = row(at);
      if (to >= weight.n) continue;
      const float sum = joined(all, at, column);
      if constexpr (kSwiGlu)
        out.row(column).set(to, swiglu_of(rounded<T>(sum), rounded<T>(joined(all, 8 + at, column))));
      else
        out.row(column).set(to, bias.empty() ? sum : sum + bias.get(to));
    }
  }
  static DEVICE_FN float joined(Shared<float> all, int at, int column) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWaves; ++w) sum += all.get((w * kRows + at) * kColumns + column);
    return sum;
  }
};

// Shared memory that lets no unit hold more blocks than all need when they are spread evenly: of a grid that
// fits, blocks that wait for the kernel before would else crowd the units that are free first.
size_t shared_for_even_blocks(const DeviceInfo& device, size_t needed, int num_blocks) {
  const auto per_unit = static_cast<size_t>(ceil_div(num_blocks, device.num_units));
  return std::max(needed, device.shared_bytes / (per_unit + 1) / 16 * 16);
}

template <class T, int kTiles, int kSpan, int kWaves, bool kSwiGlu>
void run_w4a16_mma(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside) {
  using Kernel = MmaW4A16Kernel<T, kTiles, kSpan, kWaves, kSwiGlu>;
  constexpr bool kTakesBeside = kWaves == kGemvWaves && !kSwiGlu;
  const int num_blocks = ceil_div(rows.n, Kernel::kRows);
  const int num_beside = kTakesBeside && beside != nullptr ? num_narrow_blocks(*beside) : 0;
  const Launch how{.name = kSwiGlu ? "w4a16_mma_swiglu" : "w4a16_mma",
                   .grid = {num_blocks},
                   .shared_bytes = shared_for_even_blocks(context.device.info(), Kernel::kSharedBytes,
                                                          num_blocks + num_beside),
                   .bytes = rows.n * rows.row_bytes(),
                   .flops = 2.0 * static_cast<double>(args.x.dim(0)) * rows.n * rows.k};
  const Kernel kernel{.weight = rows,
                      .x = matrix<T>(args.x),
                      .bias = global<float>(args.bias),
                      .out = matrix<T>(args.out),
                      .m = static_cast<int>(args.x.dim(0))};
  if constexpr (kTakesBeside) {
    launch_beside<T, kTiles>(context, how, kernel, beside);
  } else {
    if (beside != nullptr) gemv_mma(context, *beside);
    launch(context.device, how, kernel);
  }
}

// Eight waves a tile, or four where that lets all tiles be under way at once.
bool takes_four_waves(const DeviceInfo& device, const CodeRows& rows) {
  constexpr int kUnitWaves = 32;  // that there is room for
  const int per_unit = ceil_div(ceil_div(rows.n, kTileRows), device.num_units);
  return 8 * per_unit > kUnitWaves && 4 * per_unit <= kUnitWaves;
}

template <class T, bool kSwiGlu>
void run_any_group(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside) {
  const auto run = [&]<int kTiles, int kSpan>() {
    if (takes_four_waves(context.device.info(), rows))
      return run_w4a16_mma<T, kTiles, kSpan, 4, kSwiGlu>(context, args, rows, beside);
    run_w4a16_mma<T, kTiles, kSpan, 8, kSwiGlu>(context, args, rows, beside);
  };
  const auto run_span = [&]<int kTiles>() {
    if (rows.affine_span == 128) return run.template operator()<kTiles, 4>();
    if (rows.affine_span == 64) return run.template operator()<kTiles, 2>();
    run.template operator()<kTiles, 1>();
  };
  if (args.x.dim(0) <= 8)
    run_span.template operator()<1>();
  else
    run_span.template operator()<2>();
}

template <bool kSwiGlu>
bool run_any_type(const Context& context, const Matmul& args, const CodeRows& rows,
                  const Matmul* beside = nullptr) {
  if (context.device.info().wave != kMmaWave || !takes_words(args.x) || rows.affine.empty()) return false;
  if (args.x.dtype == DType::kBF16) return run_any_group<bf16_t, kSwiGlu>(context, args, rows, beside), true;
  if (args.x.dtype == DType::kF16) return run_any_group<f16_t, kSwiGlu>(context, args, rows, beside), true;
  return false;
}

}  // namespace

bool w4a16_mma(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside) {
  return run_any_type<false>(context, args, rows, beside);
}
bool w4a16_mma_swiglu(const Context& context, const Matmul& args, const CodeRows& rows) {
  return rows.pair_rows != 0 && run_any_type<true>(context, args, rows);
}

}  // namespace longspan::ops::device
