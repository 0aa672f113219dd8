#include "model/quantized_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/packed_words.h"

namespace longspan::model {
namespace {

using io::LinearForm;

constexpr Index kRowsOfATask = 64;  // of scales and zeros

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
      : store_(store), config_(config), layout_(layout), n_(layout.out_features), k_(layout.in_features) {
    ops::QuantizedPart& part = out_.part;
    part.kind = layout_.form == LinearForm::kFp8 ? ops::CodeKind::kE4M3 : ops::CodeKind::kInt4;
    part.out_features = n_;
    part.in_features = k_;
    part.group_size = layout_.group_size;
    part.scale_rows = layout_.scale_rows;
    if (!layout_.group_index.empty()) part.group_of = group_index();
  }

  ops::QuantizedPart shape() const {
    ops::QuantizedPart part = out_.part;
    const Index groups = layout_.num_groups();
    part.codes = layout_.form == LinearForm::kFp8 ? shape_only(DType::kF8E4M3, {n_, k_})
                                                  : shape_only(DType::kU8, {n_, (k_ + 1) / 2});
    part.scales =
        shape_only(store_.info(name(1)).dtype, {(n_ + layout_.scale_rows - 1) / layout_.scale_rows, groups});
    if (layout_.has_zeros) part.zeros = shape_only(DType::kU8, {n_, groups});
    return part;
  }

  QuantizedLinear read(ThreadPool& pool) {
    pool_ = &pool;
    ops::QuantizedPart& part = out_.part;
    part.codes = codes();
    part.scales = scales();
    if (layout_.has_zeros) part.zeros = zeros();
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
      default: {
        const TensorView view = word_rows();
        const auto* words = static_cast<const uint32_t*>(stored.data);
        layout_.form == LinearForm::kAwq ? turn_awq(words, view) : turn_gptq(words, view);
        store_.release(name(0));
        return view;
      }
    }
  }

  TensorView finite_codes(const TensorView& stored) const {
    const auto* bytes = static_cast<const uint8_t*>(stored.data);
    const Index nan = pool_->find_first(stored.num_elements(), 1 << 16, [&](Index begin, Index end) -> Index {
      const auto* found =
          std::find_if(bytes + begin, bytes + end, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
      return found == bytes + end ? -1 : found - bytes;
    });
    if (nan >= 0) fail(ErrorKind::kInvalid, "tensor {}: element {} is not finite", name(0), nan);
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

  // Tasks take a cache line of the words that lie side by side in the file, kRun words along k at a time:
  // what is read and what is written stay in the nearest cache.
  static constexpr Index kLine = 16;
  static constexpr Index kRun = 16;

  // [k, n / 8] words along n to [n, k / 8] along k.
  void turn_awq(const uint32_t* stored, const TensorView& view) const {
    auto* out = static_cast<uint32_t*>(view.data);
    const Index row_words = words_for(k_);
    const Index stored_words = n_ / kPerWord;
    pool_->parallel_ranges(stored_words, kLine, [&](Index begin, Index end) {
      for (Index k0 = 0; k0 < row_words; k0 += kRun)
        for (Index w = begin; w < end; ++w)
          for (Index kw = k0; kw < std::min(k0 + kRun, row_words); ++kw) {
            uint32_t words[kPerWord] = {};
            for (Index i = 0; i < std::min(kPerWord, k_ - kw * kPerWord); ++i)
              words[i] = stored[(kw * kPerWord + i) * stored_words + w];
            transpose_nibbles(words);
            for (Index c = 0; c < kPerWord; ++c)
              out[(w * kPerWord + c) * row_words + kw] = words[kAwqShift[c] / 4];
          }
    });
  }

  // [k / 8, n] words along k to [n, k / 8]: whole words change places.
  void turn_gptq(const uint32_t* stored, const TensorView& view) const {
    auto* out = static_cast<uint32_t*>(view.data);
    const Index row_words = words_for(k_);
    pool_->parallel_ranges(n_, kLine, [&](Index begin, Index end) {
      for (Index k0 = 0; k0 < row_words; k0 += kRun)
        for (Index n = begin; n < end; ++n)
          for (Index kw = k0; kw < std::min(k0 + kRun, row_words); ++kw)
            out[n * row_words + kw] = stored[kw * n_ + n];
    });
  }

  TensorView scales() {
    const TensorView stored = store_.view(name(1));
    dispatch_dtype(stored.dtype, [&]<class T>() {
      const T* values = stored.as<T>();
      const Index at =
          pool_->find_first(stored.num_elements(), 1 << 14, [&](Index begin, Index end) -> Index {
            const T* found = std::find_if(values + begin, values + end,
                                          [](T value) { return !std::isfinite(static_cast<float>(value)); });
            return found == values + end ? -1 : found - values;
          });
      if (at >= 0) fail(ErrorKind::kInvalid, "tensor {}: element {} is not finite", name(1), at);
    });
    if (!by_columns()) return stored;
    const Index groups = layout_.num_groups();
    const TensorView view = allocate(stored.dtype, {n_, groups});
    dispatch_dtype(stored.dtype, [&]<class T>() {
      pool_->parallel_ranges(n_, kRowsOfATask, [&](Index begin, Index end) {
        for (Index g = 0; g < groups; ++g)
          for (Index n = begin; n < end; ++n) view.as<T>()[n * groups + g] = stored.as<T>()[g * n_ + n];
      });
    });
    return view;
  }

  TensorView zeros() {
    const size_t at = layout_.form == LinearForm::kPacked ? 3 : 2;
    const auto* stored = static_cast<const uint32_t*>(store_.view(name(at)).data);
    const Index groups = layout_.num_groups();
    const TensorView view = allocate(DType::kU8, {n_, groups});
    pool_->parallel_ranges(n_, kRowsOfATask, [&](Index begin, Index end) {
      for (Index n = begin; n < end; ++n)
        for (Index g = 0; g < groups; ++g) {
          const Index word = n / kPerWord;
          const int shift =
              layout_.form == LinearForm::kAwq ? kAwqShift[n % kPerWord] : 4 * static_cast<int>(n % kPerWord);
          const uint32_t bits = by_columns() ? stored[g * words_for(n_) + word] : stored[word * groups + g];
          view.as<uint8_t>()[n * groups + g] =
              static_cast<uint8_t>(code_of(bits, shift) + static_cast<int>(layout_.zero_offset));
        }
    });
    return view;
  }

  // Empty where it says what the group size says already.
  TensorView group_index() const {
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
  ThreadPool* pool_ = nullptr;  // of read()
  QuantizedLinear out_;
};

}  // namespace

TensorView shape_only(DType dtype, Shape shape) {
  static char nowhere[8];  // a view with a shape is not empty
  return {nowhere, dtype, shape};
}

ops::QuantizedPart shape_of_quantized(const io::TensorStore& store, const io::QuantConfig& config,
                                      const io::LinearLayout& layout) {
  return Reader(store, config, layout).shape();
}

QuantizedLinear read_quantized(const io::TensorStore& store, const io::QuantConfig& config,
                               const io::LinearLayout& layout, ThreadPool& pool) {
  return Reader(store, config, layout).read(pool);
}

}  // namespace longspan::model
