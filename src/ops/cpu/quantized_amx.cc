// Decode rows times 4-bit codes on AMX tiles: words become tiles of 16 + code in bf16, exact, by one shift
// and one ternary operation a row; scales and zeros follow once a group, on the sums.
//
// Four panels side by side, one C tile each, so that products do not wait for each other. A step of 32 x 16
// weights costs 16 cycles of unpacking and 16 of the tile unit, beside each other: a thread keeps up with
// about 12 bytes of codes a cycle.
#include <immintrin.h>

#include <algorithm>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/quantized_kernels.h"

namespace longspan::ops::cpu {
namespace {

constexpr Index kTile = 16;
constexpr Index kStep = 32;
constexpr Index kRowBytes = 64;
constexpr __mmask16 kAll = 0xffff;

// Tiles 0 to 3 are C, 4 is A, 5 is B.
TileConfig tiles_for(Index rows) {
  TileConfig config;
  std::fill_n(config.rows, 5, static_cast<uint8_t>(rows));
  config.rows[5] = static_cast<uint8_t>(kTile);
  std::fill_n(config.row_bytes, 6, static_cast<uint16_t>(kRowBytes));
  return config;
}

// Codes i of both halves of each word to the first bits behind the exponent of 16.
template <int kFrom>
[[gnu::target("avx512f"), gnu::always_inline]] inline __m512i sixteen_plus_codes(__m512i words) {
  constexpr int kTo = 3;
  // Shifts of vectors as the compiler's own: g++ 12 warns of its intrinsics.
  using Words = uint32_t __attribute__((vector_size(64)));
  const auto moved = (__m512i)(kFrom < kTo ? (Words)words << std::max(0, kTo - kFrom)
                                           : (Words)words >> std::max(0, kFrom - kTo));
  const __m512i mask = _mm512_set1_epi32(0x00780078);
  const __m512i sixteen = _mm512_set1_epi32(0x41804180);
  return _mm512_ternarylogic_epi32(moved, mask, sixteen, 0xea);  // (moved & mask) | sixteen
}

// [32, 16] codes, four rows of words, to a B tile of pairs.
[[gnu::target("avx512f"), gnu::always_inline]] inline void unpack_step(const uint32_t* words, __m512i* tile) {
  UNROLL(4)
  for (int octet = 0; octet < 4; ++octet) {
    const __m512i eight = _mm512_loadu_si512(words + octet * kTile);
    tile[4 * octet + 0] = sixteen_plus_codes<0>(eight);
    tile[4 * octet + 1] = sixteen_plus_codes<4>(eight);
    tile[4 * octet + 2] = sixteen_plus_codes<8>(eight);
    tile[4 * octet + 3] = sixteen_plus_codes<12>(eight);
  }
}

[[gnu::target("avx512f")]] inline __m512 scales_of(const CodePanel& panel, Index group) {
  const Index at = group * kPanelCols;
  if (panel.scale_dtype == DType::kF32) return _mm512_loadu_ps(static_cast<const float*>(panel.scales) + at);
  const __m256i halves =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(panel.scales) + at));
  if (panel.scale_dtype == DType::kF16) return _mm512_maskz_cvtph_ps(kAll, halves);
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, halves), 16));
}

[[gnu::target("avx512f")]] inline __m512 sixteen_plus_zeros(const CodePanel& panel, Index group) {
  if (panel.zeros == nullptr) return _mm512_set1_ps(24.0f);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel.zeros + group * kPanelCols));
  return _mm512_add_ps(_mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepu8_epi32(kAll, bytes)),
                       _mm512_set1_ps(16.0f));
}

// totals += scale * (sum (16 + code) x - (16 + zero) sum x), for one panel and group.
[[gnu::target("avx512f")]] inline void add_group(const CodePanel& panel, Index group, const float* products,
                                                 const CodeRows& rows, Index first_row, Index num_rows,
                                                 float* totals, Index ld) {
  const __m512 scale = scales_of(panel, group);
  const __m512 zero = sixteen_plus_zeros(panel, group);
  for (Index r = 0; r < num_rows; ++r) {
    const __m512 sum_x = _mm512_set1_ps(rows.sums[(first_row + r) * rows.num_groups + group]);
    const __m512 exact = _mm512_fnmadd_ps(zero, sum_x, _mm512_load_ps(products + r * kTile));
    const __m512 before = group == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(totals + r * ld);
    _mm512_storeu_ps(totals + r * ld, _mm512_fmadd_ps(scale, exact, before));
  }
}

template <int kPanel>
[[gnu::target("avx512f"), gnu::always_inline]] inline void panel_step(const CodePanel& panel, Index k,
                                                                      __m512i* tile) {
  unpack_step(panel.codes + k / 8 * kPanelCols, tile);
  load_tile<5>(tile, kRowBytes);
  multiply_add<kPanel, 4, 5>();
}

// Up to 16 rows.
template <int kPanels>
[[gnu::target("avx512f")]] void row_block(const CodePanel* panels, const CodeRows& rows, Index first_row,
                                          Index num_rows, float* sums, Index ld) {
  alignas(64) __m512i tiles[kPanels][kTile];
  alignas(64) float products[kPanels][kTile * kTile];
  const bf16* x = rows.x + first_row * rows.ldx;
  const Index group_size = panels[0].group_size;
  for (Index group = 0; group < rows.num_groups; ++group) {
    zero_tile<0>();
    if constexpr (kPanels > 1) zero_tile<1>();
    if constexpr (kPanels > 2) zero_tile<2>();
    if constexpr (kPanels > 3) zero_tile<3>();
    const Index end = std::min((group + 1) * group_size, panels[0].k);
    for (Index k = group * group_size; k < end; k += kStep) {
      load_tile<4>(x + k, rows.ldx * 2);
      panel_step<0>(panels[0], k, tiles[0]);
      if constexpr (kPanels > 1) panel_step<1>(panels[1], k, tiles[1]);
      if constexpr (kPanels > 2) panel_step<2>(panels[2], k, tiles[2]);
      if constexpr (kPanels > 3) panel_step<3>(panels[3], k, tiles[3]);
    }
    store_tile<0>(products[0], kRowBytes);
    if constexpr (kPanels > 1) store_tile<1>(products[1], kRowBytes);
    if constexpr (kPanels > 2) store_tile<2>(products[2], kRowBytes);
    if constexpr (kPanels > 3) store_tile<3>(products[3], kRowBytes);
    for (Index p = 0; p < kPanels; ++p)
      add_group(panels[p], group, products[p], rows, first_row, num_rows, sums + p * kPanelCols, ld);
  }
}

}  // namespace

void multiply_codes_amx(const CodePanel* panels, Index num_panels, const CodeRows& rows, float* sums,
                        Index ld_sums) {
  constexpr decltype(&row_block<1>) kBlocks[] = {row_block<1>, row_block<2>, row_block<3>, row_block<4>};
  for (Index row = 0; row < rows.m; row += kTile) {
    const Index num_rows = std::min(kTile, rows.m - row);
    configure(tiles_for(num_rows));
    kBlocks[num_panels - 1](panels, rows, row, num_rows, sums + row * ld_sums, ld_sums);
  }
}

}  // namespace longspan::ops::cpu
