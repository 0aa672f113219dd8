// Quantised weights as kernels read them.
//
// 4-bit codes: a row is blocks of 128 codes in four 16-byte words; uint32_t j of word t holds the codes of
// k = 128 block + 32 j + 8 t + 0 .. 7, the even ones in its low half, the odd ones at the same place in its
// high half. So one mask gives two neighbours, each in its half, four lanes read a block of a row, and what
// they multiply it with lies together in x. Behind K codes and x are zeros.
// Scales of 16 bits and their zeros lie together, for whole tiles of 16 rows: in the order in which a lane of
// a matrix product wants them, rows i and i + 8 side by side; of a gate and up, row i of each.
// FP8 codes: rows as they are.
// Where groups lie scattered along K (activation order), or are no whole words, codes lie in the order of
// their groups, each filled up to whole words (`k` places for the `columns` codes), and so must x.
#pragma once

#include "ops/device/code_layout.h"
#include "ops/device/memory.h"

namespace longspan::ops::device {

// A zero and a scale's bits in one word.
DEVICE_FN int affine_zero(uint32_t word) { return static_cast<int>(word >> 16); }

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
  Matrix<uint32_t> affine;   // [codes of a row / affine_span, n in whole tiles], or empty: scales, zeros
  int affine_span;           // codes with one affine word: 32, 64 or 128, at most group_size
  int affine_per_group;      // group_size / affine_span
  bool affine_halves;        // its scales are f16, else bf16
  int pair_rows;             // rows of a gate and its up whose affine words lie side by side, eights; else 0
  ScaleRows scales;          // [ceil(n / scale_rows), groups]
  Global<uint8_t> zeros;     // [n, groups], or empty: default_zero
  Global<int32_t> place_of;  // [columns], each in 0 .. k - 1, or empty: codes lie as in the checkpoint
  int default_zero;
  int n;
  int k;
  int columns;
  int stride;  // uint32_t
  int groups;
  int group_size;
  int scale_rows;

  HOST_DEVICE_FN int affine_rows() const { return stride * 8 / affine_span; }
  // What a product reads of a row: codes, scales and zeros.
  double row_bytes() const {
    if (!affine.empty()) return 4.0 * stride + 4.0 * affine_rows();
    const double scale_bytes = scales.floats.empty() ? 2.0 : 4.0;
    return 4.0 * stride + groups * (scale_bytes / scale_rows + (zeros.empty() ? 0.0 : 1.0));
  }
  DEVICE_FN float affine_scale(uint32_t word) const {
    const auto bits = static_cast<uint16_t>(word);
    return affine_halves ? half_to_float(bits) : bfloat_to_float(bits);
  }
  // Where a row of the weight is found in a row of affine.
  HOST_DEVICE_FN int affine_place(int row) const {
    const auto i = static_cast<uint32_t>(row), pair = static_cast<uint32_t>(pair_rows);
    const uint32_t second = pair == 0 ? i / 8 % 2 : i >= pair ? 1 : 0;
    const uint32_t tile = pair == 0 ? i / 16 : (i - second * pair) / 8;  // pair is whole eights
    return static_cast<int>(tile * 16 + i % 8 * 2 + second);
  }
  DEVICE_FN uint32_t affine_word(int row, int group) const {
    return affine.row(group * affine_per_group).get(affine_place(row));
  }
  // scale_row: row / scale_rows, a division that loops do without.
  DEVICE_FN float scale(int row, int scale_row, int group) const {
    if (!affine.empty()) return affine_scale(affine_word(row, group));
    return scales.at(static_cast<int64_t>(scale_row) * groups + group);
  }
  DEVICE_FN int zero(int row, int group) const {
    if (!affine.empty()) return affine_zero(affine_word(row, group));
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
