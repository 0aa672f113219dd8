// Quantised weights as kernels read them.
//
// 4-bit codes: a row is blocks of 128 codes in four 16-byte words; uint32_t j of word t holds the codes of
// k = 128 block + 32 j + 8 t + 0 .. 7, the even ones in its low half, the odd ones at the same place in its
// high half. So one mask gives two neighbours, each in its half, four lanes read a block of a row, and what
// they multiply it with lies together in x. Behind K codes and x are zeros.
// FP8 codes: rows as they are.
#pragma once

#include "ops/device/memory.h"

namespace longspan::ops::device {

constexpr int kBlockCodes = 128;
constexpr int kBlockWords = kBlockCodes / 8;  // uint32_t
constexpr int kGroupUnit = 32;                // codes: groups of whole units are multiplied packed

// Scales as the checkpoint has them.
struct ScaleRows {
  Global<float> floats;  // one of the three
  Global<f16_t> halves;
  Global<bf16_t> bfloats;

  DEVICE_FN float at(int64_t i) const {
    if (!halves.empty()) return halves.at(i);
    return bfloats.empty() ? floats.get(i) : bfloats.at(i);
  }
};

struct CodeRows {
  Global<uint32_t> codes;    // [n, stride]
  ScaleRows scales;          // [ceil(n / scale_rows), groups]
  Global<uint8_t> zeros;     // [n, groups], or empty: default_zero
  Global<int32_t> group_of;  // [k], or empty: k / group_size
  int default_zero;
  int n;
  int k;
  int stride;  // uint32_t
  int groups;
  int group_size;
  int scale_rows;

  DEVICE_FN float scale(int row, int group) const {
    return scales.at(static_cast<int64_t>(row / scale_rows) * groups + group);
  }
  DEVICE_FN int zero(int row, int group) const {
    return zeros.empty() ? default_zero : zeros.get(static_cast<int64_t>(row) * groups + group);
  }
  DEVICE_FN Global<uint32_t> row(int64_t i) const { return codes + i * stride; }
};

// Codes 2 i and 2 i + 1 of a word as 128 + code in bf16, whose last place there is 1: exact.
DEVICE_FN uint32_t code_pair(uint32_t word, int i) { return ((word >> (4 * i)) & 0x000f000fu) | 0x43004300u; }

// All eight less the zero.
DEVICE_FN void unpack_codes(uint32_t word, float zero, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = code_pair(word, i);
    out[2 * i] = bfloat_to_float(static_cast<uint16_t>(pair)) - (128.0f + zero);
    out[2 * i + 1] = bfloat_to_float(static_cast<uint16_t>(pair >> 16)) - (128.0f + zero);
  }
}

}  // namespace longspan::ops::device
