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
  uint32_t octets;      // of a row of out, the last one perhaps half
  bool whole_in_group;  // the codes of an octet share scale and zero

  DEVICE_FN void operator()() const {
    const uint32_t i = static_cast<uint32_t>(block_idx().x) * kThreads + static_cast<uint32_t>(thread_idx());
    if (i >= num_octets) return;
    const int to = static_cast<int>(i / octets);
    const int row = first_row + to;
    const int octet = static_cast<int>(i % octets);
    float codes[8];
    load(row, octet, codes);
    Affine shared{};
    if (whole_in_group && 8 * octet < rows.k) shared = affine(row, 8 * octet / rows.group_size);
    constexpr int kPerWord = kVec<T>;
#pragma unroll
    for (int w = 0; w < 8 / kPerWord; ++w) {
      const int k0 = 8 * octet + w * kPerWord;
      if (k0 >= out.stride) return;
      Vec<T, kPerWord> word;
#pragma unroll
      for (int e = 0; e < kPerWord; ++e)
        word.v[e] = from_float<T>(value(row, k0 + e, codes[w * kPerWord + e], shared));
      out.row(to).template store<kPerWord>(k0, word);
    }
  }

  DEVICE_FN void load(int row, int octet, float (&codes)[8]) const {
    if constexpr (kKind == CodeKind::kInt4) {
      const int place = octet / 16 * 16 + octet % 4 * 4 + octet / 4 % 4;
      unpack_codes(rows.row(row).get(place), 0.0f, codes);
    } else {
      const Global<e4m3_t> from{reinterpret_cast<e4m3_t*>(rows.row(row).data)};
      const Vec<e4m3_t, 8> word = from.load<8>(8 * octet);
#pragma unroll
      for (int e = 0; e < 8; ++e) codes[e] = to_float(word.v[e]);
    }
  }

  struct Affine {
    float zero;
    float scale;
  };
  DEVICE_FN Affine affine(int row, int group) const {
    return {static_cast<float>(rows.zero(row, group)), rows.scale(row, group)};
  }

  DEVICE_FN float value(int row, int k, float code, const Affine& shared) const {
    if (k >= rows.k) return 0.0f;
    const Affine own = whole_in_group
                           ? shared
                           : affine(row, rows.group_of.empty() ? k / rows.group_size : rows.group_of.get(k));
    return (code - own.zero) * own.scale;
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
              .bytes = static_cast<double>(out.size_bytes()) +
                       static_cast<double>(out.dim(0) * rows.stride) * 4.0},
             Kernel{.rows = rows,
                    .out = matrix<T>(out),
                    .first_row = static_cast<int>(first_row),
                    .num_octets = static_cast<uint32_t>(out.dim(0) * octets),
                    .octets = static_cast<uint32_t>(octets),
                    .whole_in_group = rows.group_of.empty() && rows.group_size % 8 == 0});
    };
    if (kind == CodeKind::kInt4)
      run.template operator()<CodeKind::kInt4>();
    else
      run.template operator()<CodeKind::kE4M3>();
  });
}

}  // namespace longspan::ops::device
