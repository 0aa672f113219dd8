// Attention problems for tests: sequences whose q, k, v and gate are functions of (sequence, position) alone,
// laid into a paged cache full of NaN. However a prompt is cut, paged or batched, its tokens are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/buffer.h"
#include "ops/ops.h"

namespace longspan::ops::test {

// Positions begin .. end - 1 of sequence `id` are this step's tokens.
struct Chunk {
  int id = 0;
  Index begin = 0;
  Index end = 0;
};

// kCodes: FP8 codes with a scale for each head; kDecoded: what they stand for, in the model's dtype.
enum class CacheForm : uint8_t { kPlain, kCodes, kDecoded };

struct Problem {
  DType dtype = DType::kBF16;
  Index num_q_heads = 4;
  Index num_kv_heads = 2;
  Index head_dim = 64;
  Index page_tokens = 16;
  std::vector<Chunk> decode;   // one token each
  std::vector<Chunk> prefill;  // any number
  bool gated = true;
  float score_size = 1;     // standard deviation of the scores, about
  Index page_padding = 32;  // elements behind each page, as a shared pool may have them
  Index misalignment = 0;   // elements before q, out and the cache
  unsigned table_seed = 1;  // of the pages' order
  AttentionPath decode_path = AttentionPath::kUnified;
  AttentionPath prefill_path = AttentionPath::kUnified;
  CacheForm cache = CacheForm::kPlain;
  bool scaled = true;  // codes: false has scales of 1, by way of none
};

inline void set_element(void* data, DType dtype, Index i, float value) {
  if (dtype == DType::kF8E4M3)
    static_cast<f8e4m3*>(data)[i] = f8e4m3(value);
  else
    dispatch_dtype(dtype, [&]<class T>() { static_cast<T*>(data)[i] = T(value); });
}

inline float element(const void* data, DType dtype, Index i) {
  if (dtype == DType::kF8E4M3) return static_cast<float>(static_cast<const f8e4m3*>(data)[i]);
  float value = 0;
  dispatch_dtype(dtype, [&]<class T>() { value = static_cast<float>(static_cast<const T*>(data)[i]); });
  return value;
}

inline float rounded_to(DType dtype, float value) {
  set_element(&value, dtype, 0, value);
  return element(&value, dtype, 0);
}

// Of codes of K (plane 0) or V (plane 1): no powers of two.
inline float test_scale(Index plane, Index head) {
  return 0.0071f * static_cast<float>(1 + 3 * plane) * static_cast<float>(1 + 5 * (head % 2));
}

// One token's q, gate, k or v of one head.
inline std::vector<float> token_values(int id, Index position, char what, Index head, Index head_dim) {
  std::minstd_rand random(static_cast<unsigned>(id * 7919 + position * 104729 + what * 31 + head * 997 + 1));
  random.discard(3);
  std::vector<float> values(static_cast<size_t>(head_dim));
  for (float& value : values)
    value = (static_cast<float>(random()) / static_cast<float>(std::minstd_rand::max()) - 0.5f) * 3.46f;
  return values;
}

// Buffers and arguments of one call.
class Step {
 public:
  explicit Step(const Problem& problem) : p_(problem) {
    chunks_ = p_.decode;
    chunks_.insert(chunks_.end(), p_.prefill.begin(), p_.prefill.end());
    make_sequences();
    make_rows();
    make_cache();
  }

  // Runs both kinds of sequences on their paths; out as float [num_tokens, num_q_heads, head_dim].
  std::vector<float> run(Backend& backend) {
    Attention call = args();
    call.num_seqs = static_cast<Index>(p_.decode.size());
    call.path = p_.decode_path;
    if (call.num_seqs > 0) backend.attention(call);
    call.first_seq = call.num_seqs;
    call.num_seqs = static_cast<Index>(p_.prefill.size());
    call.path = p_.prefill_path;
    if (call.num_seqs > 0) backend.attention(call);
    return read_out();
  }

  // All sequences in one call.
  Attention args() const {
    Attention call;
    call.q = q_;
    call.gate = p_.gated ? gate_ : TensorView();
    call.block_table = block_table_.view();
    call.kv = kv_;
    call.seqs = {query_start_loc_.view(), seq_lens_.view(), num_seqs(), static_cast<Index>(p_.decode.size())};
    call.num_seqs = num_seqs();
    call.scale = p_.score_size / std::sqrt(static_cast<float>(p_.head_dim));
    call.out = out_;
    return call;
  }

  std::vector<float> read_out() const {
    std::vector<float> values;
    for (Index t = 0; t < num_tokens_; ++t)
      for (Index i = 0; i < row_size(); ++i)
        values.push_back(element(out_.data, p_.dtype, t * out_.stride(0) + i));
    return values;
  }

 private:
  Index num_seqs() const { return static_cast<Index>(chunks_.size()); }
  Index row_size() const { return p_.num_q_heads * p_.head_dim; }
  size_t element_size() const { return dtype_size(p_.dtype); }
  DType cache_dtype() const { return p_.cache == CacheForm::kCodes ? DType::kF8E4M3 : p_.dtype; }
  float scale(Index plane_idx, Index head) const { return p_.scaled ? test_scale(plane_idx, head) : 1.0f; }

  void make_sequences() {
    query_start_loc_ = Buffer(DType::kI32, {num_seqs() + 1});
    seq_lens_ = Buffer(DType::kI32, {num_seqs()});
    for (Index s = 0; s < num_seqs(); ++s) {
      const Chunk& chunk = chunks_[static_cast<size_t>(s)];
      query_start_loc_.view().as<int32_t>()[s] = static_cast<int32_t>(num_tokens_);
      seq_lens_.view().as<int32_t>()[s] = static_cast<int32_t>(chunk.end);
      num_tokens_ += chunk.end - chunk.begin;
    }
    query_start_loc_.view().as<int32_t>()[num_seqs()] = static_cast<int32_t>(num_tokens_);
  }

  // Rows as a fused projection gives them: [q | gate] per head, and something behind.
  void make_rows() {
    const Index row_stride = 2 * row_size() + 24;
    rows_ = Buffer(static_cast<size_t>(num_tokens_ * row_stride + p_.misalignment) * element_size());
    out_rows_ = Buffer(static_cast<size_t>(num_tokens_ * row_size() + p_.misalignment) * element_size());
    const auto shifted = [&](const Buffer& buffer, Index by) {
      return static_cast<char*>(buffer.data()) + static_cast<size_t>(by + p_.misalignment) * element_size();
    };
    q_ = TensorView(shifted(rows_, 0), p_.dtype, {num_tokens_, p_.num_q_heads, p_.head_dim});
    gate_ = TensorView(shifted(rows_, p_.head_dim), p_.dtype, q_.shape);
    q_.strides = gate_.strides = {row_stride, 2 * p_.head_dim, 1, 0};
    out_ = TensorView(shifted(out_rows_, 0), p_.dtype, q_.shape);
    Index row = 0;
    for (const Chunk& chunk : chunks_)
      for (Index position = chunk.begin; position < chunk.end; ++position, ++row)
        for (Index head = 0; head < p_.num_q_heads; ++head) {
          write(q_, row, head, chunk.id, position, 'q');
          write(gate_, row, head, chunk.id, position, 'g');
        }
  }

  void make_cache() {
    Index num_pages = 3;
    Index max_pages = 1;
    for (const Chunk& chunk : chunks_) {
      const Index pages = (chunk.end + p_.page_tokens - 1) / p_.page_tokens;
      num_pages += pages;
      max_pages = std::max(max_pages, pages + 1);
    }
    const Index row = p_.num_kv_heads * p_.head_dim;
    const Index page_elements = 2 * p_.page_tokens * row + p_.page_padding;
    const size_t size = dtype_size(cache_dtype());
    cache_ = Buffer(static_cast<size_t>(num_pages * page_elements + p_.misalignment) * size);
    const Index cache_elements = static_cast<Index>(cache_.size_bytes() / size);
    for (Index i = 0; i < cache_elements; ++i)
      set_element(cache_.data(), cache_dtype(), i, std::numeric_limits<float>::quiet_NaN());
    kv_ = {.data = static_cast<char*>(cache_.data()) + static_cast<size_t>(p_.misalignment) * size,
           .dtype = cache_dtype(),
           .num_pages = num_pages,
           .page_stride_bytes = page_elements * static_cast<Index>(size),
           .page_tokens = p_.page_tokens,
           .num_kv_heads = p_.num_kv_heads,
           .head_dim = p_.head_dim};
    if (p_.cache == CacheForm::kCodes && p_.scaled) {
      scales_ = Buffer(DType::kF32, {2, p_.num_kv_heads});
      for (Index i = 0; i < 2 * p_.num_kv_heads; ++i)
        scales_.view().as<float>()[i] = scale(i / p_.num_kv_heads, i % p_.num_kv_heads);
      kv_.scales = scales_.view();
    }

    std::vector<int32_t> pages(static_cast<size_t>(num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::minstd_rand(p_.table_seed));
    block_table_ = Buffer(DType::kI32, {num_seqs(), max_pages});
    std::fill_n(block_table_.view().as<int32_t>(), num_seqs() * max_pages, -1);
    for (Index s = 0; s < num_seqs(); ++s) {
      const Chunk& chunk = chunks_[static_cast<size_t>(s)];
      int32_t* table = block_table_.view().as<int32_t>() + s * max_pages;
      for (Index position = 0; position < chunk.end; ++position) {
        if (position % p_.page_tokens == 0) {
          table[position / p_.page_tokens] = pages.back();
          pages.pop_back();
        }
        for (Index head = 0; head < p_.num_kv_heads; ++head)
          for (const Index plane_idx : {0, 1})
            write_cached(table[position / p_.page_tokens], plane_idx, head, chunk.id, position);
      }
    }
  }

  TensorView plane(Index page, Index plane_idx) const {
    const Index plane_elements = p_.page_tokens * p_.num_kv_heads * p_.head_dim;
    char* data = static_cast<char*>(kv_.data) + page * kv_.page_stride_bytes +
                 plane_idx * plane_elements * static_cast<Index>(dtype_size(cache_dtype()));
    return TensorView(data, cache_dtype(), {p_.page_tokens, p_.num_kv_heads, p_.head_dim});
  }

  void write_cached(Index page, Index plane_idx, Index head, int id, Index position) {
    const TensorView view = plane(page, plane_idx);
    const std::vector<float> values =
        token_values(id, position, plane_idx == 0 ? 'k' : 'v', head, p_.head_dim);
    for (size_t d = 0; d < values.size(); ++d) {
      float value = rounded_to(p_.dtype, values[d]);
      if (p_.cache != CacheForm::kPlain) value /= scale(plane_idx, head);
      if (p_.cache == CacheForm::kDecoded) value = static_cast<float>(f8e4m3(value)) * scale(plane_idx, head);
      set_element(view.data, view.dtype,
                  position % p_.page_tokens * view.stride(0) + head * view.stride(1) + static_cast<Index>(d),
                  value);
    }
  }

  void write(const TensorView& view, Index row, Index head, int id, Index position, char what) {
    const std::vector<float> values = token_values(id, position, what, head, p_.head_dim);
    for (size_t d = 0; d < values.size(); ++d)
      set_element(view.data, p_.dtype, row * view.stride(0) + head * view.stride(1) + static_cast<Index>(d),
                  values[d]);
  }

  Problem p_;
  std::vector<Chunk> chunks_;
  Index num_tokens_ = 0;
  Buffer query_start_loc_, seq_lens_, rows_, out_rows_, cache_, scales_, block_table_;
  TensorView q_, gate_, out_;
  KvCache kv_;
};

// |a - b| / |b| over all elements.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace longspan::ops::test
