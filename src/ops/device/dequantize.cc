// Rows of a quantised weight as rows of T: rnd((code - zero) * scale), zeros behind K.
#include "ops/device/code_rows.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"

namespace longspan::ops::device {
namespace {

// Thread: eight codes of one row, written in 16-byte words. Bound by memory: it writes sizeof(T) a code.
template <class T, CodeKind kKind>
struct DequantizeKernel {
  static constexpr int kThreads = 256;
  CodeRows rows;
  Matrix<T> out;  // [num_rows, stride]
  int first_row;
  uint32_t num_octets;
  uint32_t octets;  // of a row of out, the last one perhaps half

  DEVICE_FN void operator()() const {
    const uint32_t i = static_cast<uint32_t>(block_idx().x) * kThreads + static_cast<uint32_t>(thread_idx());
    if (i >= num_octets) return;
    const int to = static_cast<int>(i / octets);
    const int row = first_row + to;
    const int octet = static_cast<int>(i % octets);
    float values[8] = {};
    if (rows.place_of.empty())
      load(row, octet, values);
    else
      gather(row, octet, values);
    constexpr int kPerWord = kVec<T>;
#pragma unroll
    for (int w = 0; w < 8 / kPerWord; ++w) {
      const int k0 = 8 * octet + w * kPerWord;
      if (k0 >= out.stride) return;
      Vec<T, kPerWord> word;
#pragma unroll
      for (int e = 0; e < kPerWord; ++e)
        word.v[e] = from_float<T>(k0 + e < rows.columns ? values[w * kPerWord + e] : 0.0f);
      out.row(to).template store<kPerWord>(k0, word);
    }
  }

  // Eight codes side by side: of one group, whose size is in whole words.
  DEVICE_FN void load(int row, int octet, float (&values)[8]) const {
    if (8 * octet >= rows.columns) return;
    if constexpr (kKind == CodeKind::kInt4) {
      unpack_codes(rows.row(row).get(word_of(octet)), 0.0f, values);
    } else {
      const Vec<e4m3_t, 8> word = fp8_codes(row).template load<8>(8 * octet);
#pragma unroll
      for (int e = 0; e < 8; ++e) values[e] = to_float(word.v[e]);
    }
    const Affine affine = affine_of(row, 8 * octet);
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] = (values[e] - affine.zero) * affine.scale;
  }

  // Eight columns, whose codes lie anywhere in the row.
  DEVICE_FN void gather(int row, int octet, float (&values)[8]) const {
    for (int e = 0; e < 8; ++e) {
      if (8 * octet + e >= rows.columns) return;
      const int place = rows.place_of.get(8 * octet + e);
      const Affine affine = affine_of(row, place);
      values[e] = (code(row, place) - affine.zero) * affine.scale;
    }
  }

  static DEVICE_FN int word_of(int octet) { return octet / 16 * 16 + octet % 4 * 4 + octet / 4 % 4; }
  DEVICE_FN Global<e4m3_t> fp8_codes(int row) const {
    return {reinterpret_cast<e4m3_t*>(rows.row(row).data)};
  }
  DEVICE_FN float code(int row, int place) const {
    if constexpr (kKind == CodeKind::kE4M3) {
      return fp8_codes(row).at(place);
    } else {
      const int shift = place % 8 / 2 * 4 + place % 2 * 16;
      return static_cast<float>(rows.row(row).get(word_of(place / 8)) >> shift & 15u);
    }
  }

  struct Affine {
    float zero;
    float scale;
  };
  DEVICE_FN Affine affine_of(int row, int place) const {
    const int group = place / rows.group_size;
    if (!rows.affine.empty()) {
      const uint32_t word = rows.affine_word(row, group);
      return {static_cast<float>(affine_zero(word)), rows.affine_scale(word)};
    }
    return {static_cast<float>(rows.zero(row, group)), rows.scale(row, row / rows.scale_rows, group)};
  }
};

}  // namespace

void dequantize(const Context& context, const CodeRows& rows, CodeKind kind, Index first_row,
                const TensorView& out) {
  const Index octets = (out.dim(1) + 7) / 8;
  CHECK(out.dim(0) * octets < Index{1} << 31);
  dispatch_element(out.dtype, [&]<class T>() {
    const auto run = [&]<CodeKind kKind>() {
      using Kernel = DequantizeKernel<T, kKind>;
      launch(context.device,
             {.name = "dequantize",
              .grid = {ceil_div(out.dim(0) * octets, Kernel::kThreads)},
              .bytes =
                  static_cast<double>(out.size_bytes()) + static_cast<double>(out.dim(0)) * rows.row_bytes()},
             Kernel{.rows = rows,
                    .out = matrix<T>(out),
                    .first_row = static_cast<int>(first_row),
                    .num_octets = static_cast<uint32_t>(out.dim(0) * octets),
                    .octets = static_cast<uint32_t>(octets)});
    };
    if (kind == CodeKind::kInt4)
      run.template operator()<CodeKind::kInt4>();
    else
      run.template operator()<CodeKind::kE4M3>();
  });
}

}  // namespace longspan::ops::device
