// AMX tile instructions, for files that run only once amx() has found them.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/tensor.h"

namespace longspan::ops::cpu {

// The 64 bytes LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

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
// The same, past the first-level cache: right for what is read once before the cache has turned over.
template <int tile>
inline void stream_tile(const void* from, Index stride_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(tile) : "memory");
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
inline void configure(const TileConfig& wanted) {
  TileConfig current;
  store_config(current);
  if (std::memcmp(&current, &wanted, sizeof(wanted)) != 0) load_config(wanted);
}

}  // namespace longspan::ops::cpu
