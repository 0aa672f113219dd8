// bf16 product on AMX tiles: C tiles of 16 x 16 floats stay in tile registers over the whole of k. Everything
// here runs only after amx_gemm() has found the instructions and been granted the tile state by the kernel.
//
// A block is 32 x 32 of C (2 x 2 tiles: 4 products for 4 tile loads), or 16 x 48 for the last few rows. Tile
// row counts follow the rows that exist, so A is read in place; the last k % 32 columns of A go through a
// zero-padded copy. Each TDPBF16PS adds its own 32 products first: the order depends on k alone.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/gemm_kernels.h"

namespace longspan::ops::cpu {
namespace {

constexpr Index kTile = 16;        // rows of a tile; also floats a row of C
constexpr Index kStep = 32;        // k of one tile product
constexpr Index kTileElems = 512;  // bf16 of one B tile: a step of one panel
constexpr Index kTileBytes = 64;   // a tile row

// The 64 bytes LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

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

// The instructions. Written as assembly because the compilers' intrinsics want literal tile numbers and g++
// 12's do not say that a tile load reads memory.
inline void load_config(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
inline void store_config(TileConfig& config) { asm volatile("sttilecfg %0" : "=m"(config)); }
template <int tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
template <int tile>
inline void load_tile(const void* from, Index stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(tile) : "memory");
}
template <int tile>
inline void store_tile(void* to, Index stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(tile) : "memory");
}
template <int c, int a, int b>
inline void multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}

// Loading a configuration takes 70 ns, reading it back 6: a thread keeps its tiles from call to call.
void configure(Index rows) {
  const TileConfig wanted = tile_config(rows);
  TileConfig current;
  store_config(current);
  if (std::memcmp(&current, &wanted, sizeof(wanted)) != 0) load_config(wanted);
}

// One row block of A and its place in C.
struct RowBlock {
  const bf16* a;       // [rows, k]
  Index lda;           // elements
  const bf16* a_tail;  // [32, 32]: the last k % 32 columns, zero-padded; nullptr when there are none
  Index steps;         // whole steps of k
  Index panel_elems;   // elements from one panel to the next
  float* c;            // [rows, n]
  Index ldc;
  Index rows;
  bool accumulate;
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

// C [17 .. 32 rows, 32 or 17 .. 31 columns].
void block_2x2(const RowBlock& block, const bf16* b, float* c, Index cols) {
  const Index lower_rows = block.rows - kTile;
  float* c_lower = c + kTile * block.ldc;
  begin_c<0>(block, c, kTile, kTile);
  begin_c<1>(block, c + kTile, kTile, cols - kTile);
  begin_c<2>(block, c_lower, lower_rows, kTile);
  begin_c<3>(block, c_lower + kTile, lower_rows, cols - kTile);
  const auto step = [&](const bf16* upper, const bf16* lower, Index stride) {
    load_tile<4>(upper, stride);
    load_tile<6>(b, kTileBytes);
    load_tile<7>(b + block.panel_elems, kTileBytes);
    load_tile<5>(lower, stride);
    multiply_add<0, 4, 6>();
    multiply_add<1, 4, 7>();
    multiply_add<2, 5, 6>();
    multiply_add<3, 5, 7>();
    b += kTileElems;
  };
  const bf16* upper = block.a;
  const bf16* lower = block.a + kTile * block.lda;
  for (Index s = 0; s < block.steps; ++s, upper += kStep, lower += kStep) step(upper, lower, block.lda * 2);
  if (block.a_tail != nullptr) step(block.a_tail, block.a_tail + kTile * kStep, kTileBytes);
  end_c<0>(block, c, kTile, kTile);
  end_c<1>(block, c + kTile, kTile, cols - kTile);
  end_c<2>(block, c_lower, lower_rows, kTile);
  end_c<3>(block, c_lower + kTile, lower_rows, cols - kTile);
}

// C [17 .. 32 rows, at most 16 columns].
void block_2x1(const RowBlock& block, const bf16* b, float* c, Index cols) {
  const Index lower_rows = block.rows - kTile;
  float* c_lower = c + kTile * block.ldc;
  begin_c<0>(block, c, kTile, cols);
  begin_c<2>(block, c_lower, lower_rows, cols);
  const auto step = [&](const bf16* upper, const bf16* lower, Index stride) {
    load_tile<4>(upper, stride);
    load_tile<6>(b, kTileBytes);
    load_tile<5>(lower, stride);
    multiply_add<0, 4, 6>();
    multiply_add<2, 5, 6>();
    b += kTileElems;
  };
  const bf16* upper = block.a;
  const bf16* lower = block.a + kTile * block.lda;
  for (Index s = 0; s < block.steps; ++s, upper += kStep, lower += kStep) step(upper, lower, block.lda * 2);
  if (block.a_tail != nullptr) step(block.a_tail, block.a_tail + kTile * kStep, kTileBytes);
  end_c<0>(block, c, kTile, cols);
  end_c<2>(block, c_lower, lower_rows, cols);
}

// C [1 .. 16 rows, 33 .. 48 columns].
void block_1x3(const RowBlock& block, const bf16* b, float* c, Index cols) {
  begin_c<0>(block, c, block.rows, kTile);
  begin_c<1>(block, c + kTile, block.rows, kTile);
  begin_c<2>(block, c + 2 * kTile, block.rows, cols - 2 * kTile);
  const auto step = [&](const bf16* a, Index stride) {
    load_tile<4>(a, stride);
    load_tile<5>(b, kTileBytes);
    load_tile<6>(b + block.panel_elems, kTileBytes);
    load_tile<7>(b + 2 * block.panel_elems, kTileBytes);
    multiply_add<0, 4, 5>();
    multiply_add<1, 4, 6>();
    multiply_add<2, 4, 7>();
    b += kTileElems;
  };
  const bf16* a = block.a;
  for (Index s = 0; s < block.steps; ++s, a += kStep) step(a, block.lda * 2);
  if (block.a_tail != nullptr) step(block.a_tail, kTileBytes);
  end_c<0>(block, c, block.rows, kTile);
  end_c<1>(block, c + kTile, block.rows, kTile);
  end_c<2>(block, c + 2 * kTile, block.rows, cols - 2 * kTile);
}

// C [1 .. 16 rows, at most 16 columns].
void block_1x1(const RowBlock& block, const bf16* b, float* c, Index cols) {
  begin_c<0>(block, c, block.rows, cols);
  const auto step = [&](const bf16* a, Index stride) {
    load_tile<4>(a, stride);
    load_tile<5>(b, kTileBytes);
    multiply_add<0, 4, 5>();
    b += kTileElems;
  };
  const bf16* a = block.a;
  for (Index s = 0; s < block.steps; ++s, a += kStep) step(a, block.lda * 2);
  if (block.a_tail != nullptr) step(block.a_tail, kTileBytes);
  end_c<0>(block, c, block.rows, cols);
}

void row_block(const RowBlock& block, const bf16* packed, Index n) {
  const bool two_rows = block.rows > kTile;
  for (Index j = 0; j < n;) {
    const Index left = n - j;
    const bf16* b = packed + j / kPanelCols * block.panel_elems;
    if (two_rows && left > kTile) {
      block_2x2(block, b, block.c + j, std::min(left, 2 * kTile));
      j += 2 * kTile;
    } else if (two_rows) {
      block_2x1(block, b, block.c + j, left);
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

void product(const bf16* a, Index lda, const bf16* packed, float* c, Index ldc, Index m, Index n, Index k,
             Accumulate accumulate) {
  alignas(64) bf16 a_tail[2 * kTile * kStep];
  const Index steps = k / kStep;
  const Index tail = k % kStep;
  Index configured_rows = 0;
  for (Index i = 0; i < m; i += 2 * kTile) {
    const Index rows = std::min(m - i, 2 * kTile);
    if (rows != configured_rows) {
      configure(rows);
      configured_rows = rows;
    }
    const bf16* block_a = a + i * lda;
    for (Index r = 0; tail != 0 && r < rows; ++r) {
      std::memcpy(a_tail + r * kStep, block_a + r * lda + steps * kStep, static_cast<size_t>(tail) * 2);
      std::fill_n(a_tail + r * kStep + tail, kStep - tail, bf16());
    }
    row_block({.a = block_a,
               .lda = lda,
               .a_tail = tail != 0 ? a_tail : nullptr,
               .steps = steps,
               .panel_elems = (steps + (tail != 0)) * kTileElems,
               .c = c + i * ldc,
               .ldc = ldc,
               .rows = rows,
               .accumulate = accumulate == Accumulate::kYes},
              packed, n);
  }
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

GemmFn<bf16> amx_gemm() { return has_amx_bf16() && request_tile_state() ? product : nullptr; }

}  // namespace longspan::ops::cpu
