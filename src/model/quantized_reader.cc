#include "model/quantized_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/packed_words.h"

namespace longspan::model {
namespace {

using io::LinearForm;

int code_of(uint32_t word, int shift) { return static_cast<int>(word >> shift & 15); }

// words[i] nibble j <-> words[j] nibble i, in three rounds of swaps.
void transpose_nibbles(uint32_t (&words)[kPerWord]) {
  constexpr uint32_t kMasks[] = {0x0000ffffu, 0x00ff00ffu, 0x0f0f0f0fu};
  for (int round = 0; round < 3; ++round) {
    const int distance = 4 >> round;
    for (int i = 0; i < kPerWord; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t swap = (words[i] >> (4 * distance) ^ words[i + distance]) & kMasks[round];
      words[i] ^= swap << (4 * distance);
      words[i + distance] ^= swap;
    }
  }
}

class Reader {
 public:
  Reader(const io::TensorStore& store, const io::QuantConfig& config, const io::LinearLayout& layout)
      : store_(store), config_(config), layout_(layout), n_(layout.out_features), k_(layout.in_features) {}

  QuantizedLinear read() {
    ops::QuantizedPart& part = out_.part;
    part.kind = layout_.form == LinearForm::kFp8 ? ops::CodeKind::kE4M3 : ops::CodeKind::kInt4;
    part.out_features = n_;
    part.in_features = k_;
    part.group_size = layout_.group_size;
    part.scale_rows = layout_.scale_rows;
    part.codes = codes();
    part.scales = scales();
    if (layout_.has_zeros) part.zeros = zeros();
    if (!layout_.group_index.empty()) part.group_of = group_index();
    return std::move(out_);
  }

 private:
  const std::string& name(size_t i) const { return layout_.tensors[i]; }  // codes, scales, ...
  bool by_columns() const { return layout_.form == LinearForm::kAwq || layout_.form == LinearForm::kGptq; }

  TensorView allocate(DType dtype, Shape shape) {
    out_.owned.emplace_back(dtype, shape);
    return out_.owned.back().view();
  }

  TensorView codes() {
    const TensorView stored = store_.view(name(0));
    switch (layout_.form) {
      case LinearForm::kFp8:
        return finite_codes(stored);
      case LinearForm::kPacked: {  // in place: rows of words are rows of bytes
        TensorView view(stored.data, DType::kU8, {n_, (k_ + 1) / 2});
        view.strides[0] = stored.dim(1) * static_cast<Index>(sizeof(uint32_t));
        return view;
      }
      case LinearForm::kAwq:
        return awq_codes(static_cast<const uint32_t*>(stored.data));
      default:
        return gptq_codes(static_cast<const uint32_t*>(stored.data));
    }
  }

  TensorView finite_codes(const TensorView& stored) const {
    const auto* bytes = static_cast<const uint8_t*>(stored.data);
    const Index count = stored.num_elements();
    const auto* nan = std::find_if(bytes, bytes + count, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
    if (nan != bytes + count)
      fail(ErrorKind::kInvalid, "tensor {}: element {} is not finite", name(0), nan - bytes);
    return stored;
  }

  // Rows of words [n, words_for(k)] as bytes.
  TensorView word_rows() {
    const Index words = words_for(k_);
    const TensorView memory = allocate(DType::kU32, {n_, words});
    TensorView view(memory.data, DType::kU8, {n_, (k_ + 1) / 2});
    view.strides[0] = words * static_cast<Index>(sizeof(uint32_t));
    return view;
  }

  // [k, n / 8] words along n to [n, k / 8] along k.
  TensorView awq_codes(const uint32_t* stored) {
    const TensorView view = word_rows();
    auto* out = static_cast<uint32_t*>(view.data);
    const Index row_words = words_for(k_);
    for (Index w = 0; w < n_ / kPerWord; ++w)
      for (Index kw = 0; kw < row_words; ++kw) {
        uint32_t words[kPerWord] = {};
        for (Index i = 0; i < std::min(kPerWord, k_ - kw * kPerWord); ++i)
          words[i] = stored[(kw * kPerWord + i) * (n_ / kPerWord) + w];
        transpose_nibbles(words);
        for (Index c = 0; c < kPerWord; ++c)
          out[(w * kPerWord + c) * row_words + kw] = words[kAwqShift[c] / 4];
      }
    return view;
  }

  // [k / 8, n] words along k to [n, k / 8]: whole words change places.
  TensorView gptq_codes(const uint32_t* stored) {
    constexpr Index kBlock = 16;  // a cache line of words
    const TensorView view = word_rows();
    auto* out = static_cast<uint32_t*>(view.data);
    const Index row_words = words_for(k_);
    for (Index n0 = 0; n0 < n_; n0 += kBlock)
      for (Index kw = 0; kw < row_words; ++kw)
        for (Index n = n0; n < std::min(n0 + kBlock, n_); ++n) out[n * row_words + kw] = stored[kw * n_ + n];
    return view;
  }

  TensorView scales() {
    const TensorView stored = store_.view(name(1));
    dispatch_dtype(stored.dtype, [&]<class T>() {
      for (Index i = 0; i < stored.num_elements(); ++i)
        if (!std::isfinite(static_cast<float>(stored.as<T>()[i])))
          fail(ErrorKind::kInvalid, "tensor {}: element {} is not finite", name(1), i);
    });
    if (!by_columns()) return stored;
    const Index groups = layout_.num_groups();
    const TensorView view = allocate(stored.dtype, {n_, groups});
    dispatch_dtype(stored.dtype, [&]<class T>() {
      for (Index g = 0; g < groups; ++g)
        for (Index n = 0; n < n_; ++n) view.as<T>()[n * groups + g] = stored.as<T>()[g * n_ + n];
    });
    return view;
  }

  TensorView zeros() {
    const size_t at = layout_.form == LinearForm::kPacked ? 3 : 2;
    const auto* stored = static_cast<const uint32_t*>(store_.view(name(at)).data);
    const Index groups = layout_.num_groups();
    const TensorView view = allocate(DType::kU8, {n_, groups});
    for (Index n = 0; n < n_; ++n)
      for (Index g = 0; g < groups; ++g) {
        const Index word = n / kPerWord;
        const int shift =
            layout_.form == LinearForm::kAwq ? kAwqShift[n % kPerWord] : 4 * static_cast<int>(n % kPerWord);
        const uint32_t bits = by_columns() ? stored[g * words_for(n_) + word] : stored[word * groups + g];
        view.as<uint8_t>()[n * groups + g] =
            static_cast<uint8_t>(code_of(bits, shift) + static_cast<int>(layout_.zero_offset));
      }
    return view;
  }

  // Empty where it says what the group size says already.
  TensorView group_index() {
    const TensorView stored = store_.view(layout_.group_index);
    const int32_t* groups = stored.as<int32_t>();
    bool in_order = true;
    bool unset = true;  // compressed-tensors writes -1 for "none"
    for (Index k = 0; k < k_; ++k) {
      in_order = in_order && groups[k] == k / layout_.group_size;
      unset = unset && groups[k] == -1;
    }
    if (in_order || unset) return {};
    if (config_.method == io::QuantMethod::kGptq && !config_.desc_act)
      fail(ErrorKind::kInvalid, "tensor {}: got groups out of order, need k / {} ({}: desc_act is false)",
           layout_.group_index, layout_.group_size, config_.source);
    for (Index k = 0; k < k_; ++k)
      if (groups[k] < 0 || groups[k] >= layout_.num_groups())
        fail(ErrorKind::kInvalid, "tensor {}: element {}: got {}, need 0 .. {}", layout_.group_index, k,
             groups[k], layout_.num_groups() - 1);
    return stored;
  }

  const io::TensorStore& store_;
  const io::QuantConfig& config_;
  const io::LinearLayout& layout_;
  const Index n_;
  const Index k_;
  QuantizedLinear out_;
};

}  // namespace

QuantizedLinear read_quantized(const io::TensorStore& store, const io::QuantConfig& config,
                               const io::LinearLayout& layout) {
  return Reader(store, config, layout).read();
}

}  // namespace longspan::model
