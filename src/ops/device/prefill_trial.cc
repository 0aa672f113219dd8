#include "ops/device/prefill_trial.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "core/log.h"

namespace longspan::ops::device {
namespace {

constexpr Index kNumPages = 8, kMaxPages = 4;
constexpr int32_t kPlaces[2][kMaxPages] = {{3, 1, 5, -1}, {0, 4, 6, -1}};  // of the sequence's pages
constexpr int32_t kNeighbour[kMaxPages] = {2, -1, -1, -1};
constexpr Index kNeighbourTokens = 70, kNeighbourRows = 6;
constexpr float kSpread = 1;  // of the scores, about: they tell keys apart

// Relative L2 of one head's row. Weights and results are rounded to T, and q may be: each an ulp at most.
double rounding_of(DType dtype) { return dtype == DType::kBF16 ? 1.5e-2 : 2e-3; }

using Bits = std::vector<uint16_t>;

Buffer on_device(Device& device, DType dtype, const void* from, Index count) {
  Buffer there = device.allocate(dtype, {count});
  device.upload(there.data(), from, there.size_bytes());
  return there;
}

// Of dtype, normally distributed.
Bits drawn(DType dtype, unsigned seed, Index count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Bits bits(static_cast<size_t>(count));
  for (uint16_t& one : bits)
    one = dtype == DType::kBF16 ? bf16(normal(random)).bits : f16(normal(random)).bits;
  return bits;
}

Bits to_host(Device& device, const TensorView& view) {
  Bits bits(static_cast<size_t>(view.num_elements()));
  device.download(bits.data(), view.data, view.size_bytes());
  return bits;
}

class Trial {
 public:
  Trial(Device& device, const PrefillShape& shape, const PrefillCall& call)
      : device_(device),
        shape_(shape),
        call_(call),
        begin_(shape.page_tokens - 64),
        end_(shape.page_tokens + 65),
        num_rows_(1 + end_ - begin_ + kNeighbourRows),
        q_(drawn(shape.dtype, 1, num_rows_ * shape.num_q_heads * 2 * shape.head_dim)),
        tokens_(drawn(shape.dtype, 2, 2 * end_ * kv_row())),
        q_there_(on_device(device, shape.dtype, q_.data(), static_cast<Index>(q_.size()))),
        cache_(device.allocate(shape.dtype, {kNumPages, 2, shape.page_tokens * kv_row()})),
        out_(device.allocate(shape.dtype, {num_rows_, shape.num_q_heads, shape.head_dim})) {
    fill_cache();
  }

  std::string fault() {
    const Bits whole = run(begin_, end_);
    if (!refusal_.empty()) return refusal_;
    if (std::string wrong = away_from_formula(whole); !wrong.empty()) return wrong;
    if (run(begin_, end_) != whole) return "gives other bits the second time";
    Bits cut;
    for (const auto& [from, to] : {std::pair{begin_, end_ - 65}, {end_ - 65, end_ - 1}, {end_ - 1, end_}}) {
      const Bits part = run(from, to);
      cut.insert(cut.end(), part.begin(), part.end());
    }
    if (cut != whole) return "gives other bits where the prompt is cut";
    if (run(begin_, end_, kPlaces[1]) != whole) return "gives other bits where its pages lie elsewhere";
    if (run_in_crowd() != whole) return "gives other bits beside another sequence";
    return refusal_;
  }

 private:
  Index kv_row() const { return shape_.num_kv_heads * shape_.head_dim; }
  const uint16_t* token(int plane, Index position) const {
    return tokens_.data() + (plane * end_ + position) * kv_row();
  }

  void fill_cache() {
    Bits bits(static_cast<size_t>(cache_.view().num_elements()), 0xffff);  // NaN
    const auto put = [&](const int32_t* pages, Index num_tokens) {
      for (Index t = 0; t < num_tokens; ++t)
        for (int plane = 0; plane < 2; ++plane) {
          const Index page = 2 * pages[t / shape_.page_tokens] + plane;
          std::memcpy(bits.data() + (page * shape_.page_tokens + t % shape_.page_tokens) * kv_row(),
                      token(plane, t), static_cast<size_t>(kv_row()) * sizeof(uint16_t));
        }
    };
    put(kPlaces[0], end_);
    put(kPlaces[1], end_);
    put(kNeighbour, std::min(kNeighbourTokens, shape_.page_tokens));
    device_.upload(cache_.data(), bits.data(), cache_.size_bytes());
  }

  Attention args(Index first_row, Index count, const Buffer& table, const Buffer& starts,
                 const Buffer& lengths) {
    TensorView q(q_there_.data(), shape_.dtype, {num_rows_, shape_.num_q_heads, 2 * shape_.head_dim});
    return {.q = q.rows(first_row, count).cols(0, shape_.head_dim),
            .block_table =
                TensorView(table.data(), DType::kI32, {table.view().num_elements() / kMaxPages, kMaxPages}),
            .kv = {.data = cache_.data(),
                   .dtype = shape_.dtype,
                   .num_pages = kNumPages,
                   .page_stride_bytes =
                       2 * shape_.page_tokens * kv_row() * static_cast<Index>(dtype_size(shape_.dtype)),
                   .page_tokens = shape_.page_tokens,
                   .num_kv_heads = shape_.num_kv_heads,
                   .head_dim = shape_.head_dim},
            .seqs = {starts.view(), lengths.view(), lengths.view().num_elements(), 0},
            .num_seqs = 1,
            .scale = scale(),
            .path = AttentionPath::kVendorPrefill,
            .out = out_.view().rows(first_row, count)};
  }
  float scale() const { return kSpread / std::sqrt(static_cast<float>(shape_.head_dim)); }

  Bits answer(const Attention& args, const TensorView& rows) {
    device_.zero(out_.data(), out_.size_bytes());
    if (std::string why = call_(args); !why.empty() && refusal_.empty()) refusal_ = "refuses a call: " + why;
    return to_host(device_, rows);
  }

  // Rows of positions from .. to - 1.
  Bits run(Index from, Index to, const int32_t* pages = kPlaces[0]) {
    const int32_t starts[] = {0, static_cast<int32_t>(to - from)}, length = static_cast<int32_t>(to);
    const Buffer table = on_device(device_, DType::kI32, pages, kMaxPages),
                 loc = on_device(device_, DType::kI32, starts, 2),
                 lengths = on_device(device_, DType::kI32, &length, 1);
    const Attention call = args(1 + from - begin_, to - from, table, loc, lengths);
    return answer(call, call.out);
  }

  // Behind a row that decodes and before another prompt's rows.
  Bits run_in_crowd() {
    const auto count = static_cast<int32_t>(end_ - begin_);
    const auto neighbour = static_cast<int32_t>(std::min(kNeighbourTokens, shape_.page_tokens));
    const int32_t starts[] = {0, 1, 1 + count, static_cast<int32_t>(num_rows_)},
                  seq_lens[] = {1, static_cast<int32_t>(end_), neighbour};
    int32_t pages[3 * kMaxPages];
    std::memcpy(pages, kNeighbour, sizeof kNeighbour);
    std::memcpy(pages + kMaxPages, kPlaces[0], sizeof kPlaces[0]);
    std::memcpy(pages + 2 * kMaxPages, kNeighbour, sizeof kNeighbour);
    const Buffer table = on_device(device_, DType::kI32, pages, 3 * kMaxPages),
                 loc = on_device(device_, DType::kI32, starts, 4),
                 lengths = on_device(device_, DType::kI32, seq_lens, 3);
    Attention call = args(0, num_rows_, table, loc, lengths);
    call.seqs.num_decode_seqs = 1;
    call.first_seq = 1;
    call.num_seqs = 2;
    Bits rows = answer(call, call.out.rows(1, count));
    for (const uint16_t bits : to_host(device_, call.out.rows(0, 1)))
      if (bits != 0 && refusal_.empty()) refusal_ = "writes a row that is none of its own";
    return rows;
  }

  // Every row of one query head of each KV head, and of all heads where a page begins.
  std::string away_from_formula(const Bits& got) {
    std::string fault;
    dispatch_dtype(shape_.dtype, [&]<class T>() {
      for (Index row = 0; row < end_ - begin_ && fault.empty(); ++row)
        for (Index head = 0; head < shape_.num_q_heads && fault.empty(); ++head) {
          const Index group = shape_.num_q_heads / shape_.num_kv_heads;
          if (head % group != (row + head / group) % group && row != 64) continue;
          const Index at = row * shape_.num_q_heads + head;
          const double error =
              error_of<T>(q_.data() + ((1 + row) * shape_.num_q_heads + head) * 2 * shape_.head_dim,
                          head / group, begin_ + row, got.data() + at * shape_.head_dim);
          if (!(error <= rounding_of(shape_.dtype)))
            fault = fmt::format("is off by {:.2g} at position {}, head {}, where rounding explains {:.2g}",
                                error, begin_ + row, head, rounding_of(shape_.dtype));
        }
    });
    return fault;
  }

  template <class T>
  static double value(const uint16_t* bits) {
    if constexpr (sizeof(T) == sizeof *bits)
      return static_cast<double>(static_cast<float>(std::bit_cast<T>(*bits)));
    return 0;  // float32 never comes here
  }

  template <class T>
  double error_of(const uint16_t* q, Index kv_head, Index position, const uint16_t* got) const {
    const Index dim = shape_.head_dim;
    std::vector<double> query(static_cast<size_t>(dim)), sum(static_cast<size_t>(dim));
    for (Index i = 0; i < dim; ++i) query[static_cast<size_t>(i)] = value<T>(q + i);
    double weights = 0;
    for (Index key = 0; key <= position; ++key) {
      double score = 0;
      for (Index i = 0; i < dim; ++i)
        score += query[static_cast<size_t>(i)] * value<T>(token(0, key) + kv_head * dim + i);
      const double weight = std::exp(score * static_cast<double>(scale()));
      weights += weight;
      for (Index i = 0; i < dim; ++i)
        sum[static_cast<size_t>(i)] += weight * value<T>(token(1, key) + kv_head * dim + i);
    }
    double difference = 0, size = 0;
    for (Index i = 0; i < dim; ++i) {
      const double exact = sum[static_cast<size_t>(i)] / weights;
      difference += std::pow(value<T>(got + i) - exact, 2);
      size += exact * exact;
    }
    return std::sqrt(difference / size);
  }

  Device& device_;
  const PrefillShape shape_;
  const PrefillCall& call_;
  const Index begin_, end_;  // positions of the rows
  const Index num_rows_;     // in memory: one before them, kNeighbourRows behind
  const Bits q_;             // [num_rows_, num_q_heads, q | gate, head_dim], as a fused projection gives it
  const Bits tokens_;        // K, then V of every position: [2, end_, num_kv_heads, head_dim]
  Buffer q_there_, cache_, out_;
  std::string refusal_;
};

}  // namespace

std::string fault_of(Device& device, const PrefillShape& shape, const PrefillCall& call) {
  return Trial(device, shape, call).fault();
}

}  // namespace longspan::ops::device
