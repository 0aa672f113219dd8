// bf16 product on AMX tiles: C tiles of 16 x 16 floats stay in tile registers over the whole of k. Everything
// here runs only after amx() has found the instructions and been granted the tile state by the kernel.
//
// A block is 32 x 32 of C (2 x 2 tiles: 4 products for 4 tile loads), or 16 x 48 for the last few rows. Tile
// row counts follow the rows that exist, so A is read in place; the last k % 32 columns of A go through a
// zero-padded copy. Every product takes a whole step of 32: the order of a sum depends on k alone.
//
// What was measured on Sapphire Rapids (raw peak of a thread 2.94 TFLOP/s; second-level cache 50 bytes a
// cycle, third 10): tiles that come past the first-level cache (TILELOADDT1) gain 8 points of the peak; a
// second pass over stretches of k, to keep one operand in that cache, loses more at the ends of blocks than
// it gains; prefetches for each tile load cost 15 points; rows a power of two apart cost 10, which packing
// them saves.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/swiglu_avx512bf16.h"

namespace longspan::ops::cpu {
namespace {

constexpr Index kTile = 16;        // rows of a tile; also floats a row of C
constexpr Index kStep = 32;        // k of one tile product
constexpr Index kTileElems = 512;  // bf16 of one B tile: a step of one panel
constexpr Index kTileBytes = 64;   // a tile row
constexpr Index kBlockRows = kPackedRows;
constexpr Index kRowStepElems = kBlockRows * kStep;

// Tiles 0 to 3 are C, 4 and 5 are A (upper, lower), 6 and 7 are B. With upper rows only, 0 to 2 are C, 4 is A
// and 5 to 7 are B.
TileConfig tile_config(Index rows) {
  TileConfig config;
  const auto upper = static_cast<uint8_t>(std::min(rows, kTile));
  const auto lower = static_cast<uint8_t>(rows > kTile ? rows - kTile : 0);
  const auto full = static_cast<uint8_t>(kTile);
  const uint8_t two_rows[8] = {upper, upper, lower, lower, upper, lower, full, full};
  const uint8_t one_row[8] = {upper, upper, upper, upper, upper, full, full, full};
  std::memcpy(config.rows, lower > 0 ? two_rows : one_row, sizeof(two_rows));
  std::fill_n(config.row_bytes, 8, static_cast<uint16_t>(kTileBytes));
  return config;
}

void configure(Index rows) { configure(tile_config(rows)); }

// Steps of k of one row block of A, as tile loads see them.
struct Span {
  const bf16* upper = nullptr;  // rows 0 .. 15 of the first step
  const bf16* lower = nullptr;  // rows 16 .. 31
  Index row_bytes = 0;          // from one row to the next
  Index step_elems = 0;         // from one step to the next
  Index steps = 0;
};

// One row block of A and its place in C.
struct RowBlock {
  Span spans[2];      // the whole steps, then the zero-padded rest of k, if any
  Index panel_elems;  // from one panel of B to the next
  float* c;           // [rows, n]
  Index ldc;
  Index rows;
  bool accumulate;
};

// How a block reads A. Rows in place lie far apart: the first-level cache keeps their next steps. Packed rows
// are one stream.
struct RowsInPlace {
  template <int tile>
  static void load(const bf16* from, Index row_bytes) {
    load_tile<tile>(from, row_bytes);
  }
};
struct RowsPacked {
  template <int tile>
  static void load(const bf16* from, Index row_bytes) {
    stream_tile<tile>(from, row_bytes);
  }
};

// A 16 x 16 tile of C as a tile load sees it: C itself, or a copy where columns run out.
struct alignas(64) EdgeTile {
  float values[kTile * kTile];

  const float* fill(const float* c, Index ldc, Index rows, Index cols) {
    for (Index i = 0; i < rows; ++i) std::copy_n(c + i * ldc, cols, values + i * kTile);
    return values;
  }
  void spill(float* c, Index ldc, Index rows, Index cols) const {
    for (Index i = 0; i < rows; ++i) std::copy_n(values + i * kTile, cols, c + i * ldc);
  }
};

template <int tile>
inline void begin_c(const RowBlock& block, const float* c, Index rows, Index cols) {
  if (!block.accumulate) {
    zero_tile<tile>();
  } else if (cols >= kTile) {
    load_tile<tile>(c, block.ldc * 4);
  } else {
    EdgeTile edge;
    load_tile<tile>(edge.fill(c, block.ldc, rows, cols), kTileBytes);
  }
}

template <int tile>
inline void end_c(const RowBlock& block, float* c, Index rows, Index cols) {
  if (cols >= kTile) {
    store_tile<tile>(c, block.ldc * 4);
  } else {
    EdgeTile edge;
    store_tile<tile>(edge.values, kTileBytes);
    edge.spill(c, block.ldc, rows, cols);
  }
}

// What a block does beside each step: nothing, or a row of the block before it and a look ahead.
struct NoSideWork {
  void next() {}
};

class RowFinisher {
 public:
  RowFinisher(const float* sums, const PackedProduct& args, Index row, Index col, Index num_rows,
              Index num_cols)
      : sums_(sums),
        bias_(args.bias != nullptr ? args.bias + col : nullptr),
        swiglu_(args.swiglu_rows != nullptr),  // that function, a row at a time
        out_(args.out + row * args.ldo + col),
        ldo_(args.ldo),
        num_rows_(num_rows),
        mask_(static_cast<__mmask32>((uint64_t{1} << num_cols) - 1)),
        past_caches_(args.out_past_caches && mask_ == kWholeLine && args.ldo % kLineElems == 0 &&
                     reinterpret_cast<uintptr_t>(out_) % (kLineElems * sizeof(bf16)) == 0) {}
  RowFinisher() = default;

  // Fetches `num_lines` lines from `from` on beside each step to come.
  void look_ahead(const bf16* from, Index num_lines) {
    ahead_ = from;
    num_lines_ = num_lines;
  }

  [[gnu::target("avx512f,avx512bw,avx512bf16"), gnu::always_inline]] inline void next() {
    for (Index line = 0; line < num_lines_; ++line, ahead_ += kLineElems) _mm_prefetch(ahead_, _MM_HINT_T1);
    if (num_rows_ > 0) finish_row();
  }
  [[gnu::target("avx512f,avx512bw,avx512bf16")]] void finish() {
    while (num_rows_ > 0) finish_row();
  }

 private:
  static constexpr Index kLineElems = 32;  // bf16 of a cache line
  static constexpr __mmask32 kWholeLine = 0xffffffffu;

  [[gnu::target("avx512f,avx512bw,avx512bf16"), gnu::always_inline]] inline void finish_row() {
    if (swiglu_)
      swiglu_panel(sums_, out_, static_cast<__mmask16>(mask_));
    else
      round_row();
    sums_ += 2 * kTile;
    out_ += ldo_;
    --num_rows_;
  }

  [[gnu::target("avx512f,avx512bw,avx512bf16"), gnu::always_inline]] inline void round_row() {
    __m512 left = _mm512_load_ps(sums_);
    __m512 right = _mm512_load_ps(sums_ + kTile);
    if (bias_ != nullptr) {
      left = _mm512_add_ps(left, _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask_), bias_));
      right =
          _mm512_add_ps(right, _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask_ >> kTile), bias_ + kTile));
    }
    const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(right, left);
    if (past_caches_)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out_), rounded);
    else
      _mm512_mask_storeu_epi16(out_, mask_, rounded);
  }

  const float* sums_ = nullptr;  // [num_rows, 32], the rows still to be rounded
  const float* bias_ = nullptr;  // [32] or nullptr
  bool swiglu_ = false;
  bf16* out_ = nullptr;  // [num_rows, num_cols]
  Index ldo_ = 0;
  Index num_rows_ = 0;
  __mmask32 mask_ = 0;
  bool past_caches_ = false;
  const bf16* ahead_ = nullptr;
  Index num_lines_ = 0;
};

// C [17 .. 32 rows, 17 .. 32 columns].
template <class ARows, class SideWork>
[[gnu::target("avx512f,avx512bw,avx512bf16")]] void block_2x2(const RowBlock& block, const bf16* b, float* c,
                                                              Index cols, SideWork& side_work) {
  const Index lower_rows = block.rows - kTile;
  float* c_lower = c + kTile * block.ldc;
  begin_c<0>(block, c, kTile, kTile);
  begin_c<1>(block, c + kTile, kTile, cols - kTile);
  begin_c<2>(block, c_lower, lower_rows, kTile);
  begin_c<3>(block, c_lower + kTile, lower_rows, cols - kTile);
  for (Span a : block.spans)
    for (; a.steps > 0; --a.steps) {
      ARows::template load<4>(a.upper, a.row_bytes);
      stream_tile<6>(b, kTileBytes);
      stream_tile<7>(b + block.panel_elems, kTileBytes);
      ARows::template load<5>(a.lower, a.row_bytes);
      multiply_add<0, 4, 6>();
      multiply_add<1, 4, 7>();
      multiply_add<2, 5, 6>();
      multiply_add<3, 5, 7>();
      side_work.next();
      a.upper += a.step_elems;
      a.lower += a.step_elems;
      b += kTileElems;
    }
  end_c<0>(block, c, kTile, kTile);
  end_c<1>(block, c + kTile, kTile, cols - kTile);
  end_c<2>(block, c_lower, lower_rows, kTile);
  end_c<3>(block, c_lower + kTile, lower_rows, cols - kTile);
}

// C [17 .. 32 rows, at most 16 columns].
template <class ARows>
void block_2x1(const RowBlock& block, const bf16* b, float* c, Index cols) {
  const Index lower_rows = block.rows - kTile;
  float* c_lower = c + kTile * block.ldc;
  begin_c<0>(block, c, kTile, cols);
  begin_c<2>(block, c_lower, lower_rows, cols);
  for (Span a : block.spans)
    for (; a.steps > 0; --a.steps) {
      ARows::template load<4>(a.upper, a.row_bytes);
      stream_tile<6>(b, kTileBytes);
      ARows::template load<5>(a.lower, a.row_bytes);
      multiply_add<0, 4, 6>();
      multiply_add<2, 5, 6>();
      a.upper += a.step_elems;
      a.lower += a.step_elems;
      b += kTileElems;
    }
  end_c<0>(block, c, kTile, cols);
  end_c<2>(block, c_lower, lower_rows, cols);
}

// C [1 .. 16 rows, 33 .. 48 columns].
void block_1x3(const RowBlock& block, const bf16* b, float* c, Index cols) {
  begin_c<0>(block, c, block.rows, kTile);
  begin_c<1>(block, c + kTile, block.rows, kTile);
  begin_c<2>(block, c + 2 * kTile, block.rows, cols - 2 * kTile);
  for (Span a : block.spans)
    for (; a.steps > 0; --a.steps) {
      load_tile<4>(a.upper, a.row_bytes);
      stream_tile<5>(b, kTileBytes);
      stream_tile<6>(b + block.panel_elems, kTileBytes);
      stream_tile<7>(b + 2 * block.panel_elems, kTileBytes);
      multiply_add<0, 4, 5>();
      multiply_add<1, 4, 6>();
      multiply_add<2, 4, 7>();
      a.upper += a.step_elems;
      b += kTileElems;
    }
  end_c<0>(block, c, block.rows, kTile);
  end_c<1>(block, c + kTile, block.rows, kTile);
  end_c<2>(block, c + 2 * kTile, block.rows, cols - 2 * kTile);
}

// C [1 .. 16 rows, at most 16 columns].
void block_1x1(const RowBlock& block, const bf16* b, float* c, Index cols) {
  begin_c<0>(block, c, block.rows, cols);
  for (Span a : block.spans)
    for (; a.steps > 0; --a.steps) {
      load_tile<4>(a.upper, a.row_bytes);
      stream_tile<5>(b, kTileBytes);
      multiply_add<0, 4, 5>();
      a.upper += a.step_elems;
      b += kTileElems;
    }
  end_c<0>(block, c, block.rows, cols);
}

template <class ARows>
void row_block(const RowBlock& block, const bf16* packed, Index n) {
  const bool two_rows = block.rows > kTile;
  for (Index j = 0; j < n;) {
    const Index left = n - j;
    const bf16* b = packed + j / kPanelCols * block.panel_elems;
    if (two_rows && left > kTile) {
      NoSideWork none;
      block_2x2<ARows>(block, b, block.c + j, std::min(left, 2 * kTile), none);
      j += 2 * kTile;
    } else if (two_rows) {
      block_2x1<ARows>(block, b, block.c + j, left);
      j += kTile;
    } else if (left > 2 * kTile) {
      block_1x3(block, b, block.c + j, std::min(left, 3 * kTile));
      j += 3 * kTile;
    } else {
      block_1x1(block, b, block.c + j, std::min(left, kTile));
      j += kTile;
    }
  }
}

// The last k % 32 columns of `rows` rows, padded with zeros to [32, 32].
void copy_tail(const bf16* a, Index lda, Index rows, Index k, bf16* to) {
  const Index tail = k % kStep;
  for (Index r = 0; r < rows; ++r) {
    std::copy_n(a + r * lda + k - tail, tail, to + r * kStep);
    std::fill_n(to + r * kStep + tail, kStep - tail, bf16());
  }
}

void product(const bf16* a, Index lda, const bf16* packed, float* c, Index ldc, Index m, Index n, Index k,
             Accumulate accumulate) {
  alignas(64) bf16 tail[kBlockRows * kStep];
  const Index steps = k / kStep;
  const Index tail_steps = k % kStep != 0 ? 1 : 0;
  for (Index i = 0; i < m; i += kBlockRows) {
    const Index rows = std::min(m - i, kBlockRows);
    if (i == 0 || rows < kBlockRows) configure(rows);
    const bf16* rows_a = a + i * lda;
    if (tail_steps > 0) copy_tail(rows_a, lda, rows, k, tail);
    row_block<RowsInPlace>({.spans = {{.upper = rows_a,
                                       .lower = rows_a + kTile * lda,
                                       .row_bytes = lda * 2,
                                       .step_elems = kStep,
                                       .steps = steps},
                                      {.upper = tail,
                                       .lower = tail + kTile * kStep,
                                       .row_bytes = kTileBytes,
                                       .step_elems = 0,
                                       .steps = tail_steps}},
                            .panel_elems = (steps + tail_steps) * kTileElems,
                            .c = c + i * ldc,
                            .ldc = ldc,
                            .rows = rows,
                            .accumulate = accumulate == Accumulate::kYes},
                           packed, n);
  }
}

[[gnu::target("avx512f")]] void pack_rows(const bf16* a, Index lda, Index m, Index k, bf16* packed) {
  constexpr Index kGroup = 4;  // steps read from a row at once: whole pairs of lines in, four streams out
  const Index steps = k / kStep;
  for (Index i = 0; i < m; i += kBlockRows, a += kBlockRows * lda) {
    const Index rows = std::min(m - i, kBlockRows);
    for (Index first = 0; first < steps; first += kGroup)
      for (Index r = 0; r < rows; ++r)
        for (Index s = first; s < std::min(first + kGroup, steps); ++s)
          _mm512_store_si512(packed + s * kRowStepElems + r * kStep,
                             _mm512_loadu_si512(a + r * lda + s * kStep));
    packed += steps * kRowStepElems;
    if (k % kStep == 0) continue;
    copy_tail(a, lda, rows, k, packed);
    packed += kRowStepElems;
  }
}

// Sums of a block are rounded and stored beside the steps of the next one: done on its own, that work leaves
// the tile unit idle for a quarter of the time.
void multiply_packed(const PackedProduct& args) {
  constexpr Index kCols = 2 * kTile;
  constexpr Index kLookAheadBytes = 128 << 10;  // longer blocks would push the panels out of the cache
  alignas(64) float sums[2][kBlockRows * kCols];
  int current = 0;
  RowFinisher finisher;
  const Index block_elems = 2 * args.panel_elems;
  const Index out_cols = args.swiglu_rows != nullptr ? kTile : kCols;  // of a block
  const Index num_blocks = (args.n + out_cols - 1) / out_cols;
  const Index lines = block_elems * 2 <= kLookAheadBytes ? (kBlockRows + num_blocks - 1) / num_blocks : 0;
  for (Index i = 0; i < args.m; i += kBlockRows) {
    const Index rows = std::min(args.m - i, kBlockRows);
    if (i == 0 || rows < kBlockRows) configure(rows);
    const bf16* a = args.rows + i / kBlockRows * block_elems;
    RowBlock block{.spans = {{.upper = a,
                              .lower = a + kTile * kStep,
                              .row_bytes = kTileBytes,
                              .step_elems = kRowStepElems,
                              .steps = args.panel_elems / kTileElems},
                             {}},
                   .panel_elems = args.panel_elems,
                   .c = nullptr,
                   .ldc = kCols,
                   .rows = rows,
                   .accumulate = false};
    for (Index j = 0; j < num_blocks; ++j) {
      const Index out_col = j * out_cols;
      const Index num_out = std::min(args.n - out_col, out_cols);
      const Index cols = args.swiglu_rows != nullptr ? kCols : num_out;
      const bf16* b = args.panels + j * 2 * args.panel_elems;
      block.c = sums[current];
      if (i > 0)
        finisher.look_ahead(a + block_elems + j * lines * block.spans[0].steps * kStep, lines);
      else if (j + 1 < num_blocks)  // the panels' first use: they come from memory
        finisher.look_ahead(b + 2 * args.panel_elems, 2 * kTile);
      if (rows > kTile && cols > kTile)
        block_2x2<RowsPacked>(block, b, block.c, cols, finisher);
      else
        row_block<RowsPacked>(block, b, cols);
      finisher.finish();
      finisher = RowFinisher(sums[current], args, i, out_col, rows, num_out);
      current ^= 1;
    }
  }
  finisher.finish();
  _mm_sfence();  // stores past the caches are ordered by nothing else
}

// Linux gives a process the 8 KiB tile state on request only.
bool request_tile_state() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureXtiledata = 18;
  return ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

// CPUID leaf 7: EDX bit 22 AMX-BF16, bit 24 AMX-TILE.
bool has_amx_bf16() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  constexpr unsigned kNeeded = (1u << 22) | (1u << 24);
  return (edx & kNeeded) == kNeeded;
}

}  // namespace

MatrixUnit amx() {
  if (!has_amx_bf16() || !request_tile_state()) return {};
  return {.gemm = product,
          .pack_rows = pack_rows,
          .multiply_packed = multiply_packed,
          .multiply_codes = multiply_codes_amx};
}

}  // namespace longspan::ops::cpu
