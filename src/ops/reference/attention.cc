// Attention as the formula says it: all scores of a row, softmax, weighted sum.
#include <algorithm>
#include <cmath>

#include "ops/dequantize.h"
#include "ops/reference/internal.h"

namespace longspan::ops::reference {
namespace {

// One kv head of the cache as attention sees it: values of T.
class CachedHead {
 public:
  CachedHead(const Attention& args, Index seq_idx, Index kv_head)
      : args_(args),
        table_(args.block_table.as<int32_t>() + seq_idx * args.block_table.stride(0)),
        kv_head_(kv_head) {}

  float at(Index plane, Index position, Index d) const {
    const KvCache& kv = args_.kv;
    const Elements page(kv_page(kv, table_[position / kv.page_tokens], plane));
    const float stored = page.at(position % kv.page_tokens, kv_head_, d);
    if (kv.dtype != DType::kF8E4M3) return stored;
    return rounded(stored * kv_scale(kv, plane, kv_head_), args_.q.dtype);
  }

 private:
  const Attention& args_;
  const int32_t* table_;  // [max_pages]
  Index kv_head_;
};

// Output of one query head over positions 0 .. num_positions - 1.
std::vector<float> attend(const Attention& args, Index seq_idx, Index row, Index head, Index num_positions) {
  const KvCache& kv = args.kv;
  const CachedHead cached(args, seq_idx, head / (args.q.dim(1) / kv.num_kv_heads));
  std::vector<float> scores(static_cast<size_t>(num_positions));
  for (Index p = 0; p < num_positions; ++p) {
    float dot = 0;
    for (Index d = 0; d < kv.head_dim; ++d) dot += Elements(args.q).at(row, head, d) * cached.at(0, p, d);
    scores[static_cast<size_t>(p)] = dot * args.scale;
  }
  const float max = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (float& score : scores) total += score = std::exp(score - max);
  std::vector<double> sum(static_cast<size_t>(kv.head_dim));
  for (Index p = 0; p < num_positions; ++p) {
    for (Index d = 0; d < kv.head_dim; ++d)
      sum[static_cast<size_t>(d)] += static_cast<double>(scores[static_cast<size_t>(p)]) * cached.at(1, p, d);
  }
  std::vector<float> out(sum.size());
  for (size_t d = 0; d < sum.size(); ++d) out[d] = static_cast<float>(sum[d] / total);
  return out;
}

}  // namespace

void attention(const Attention& args) {
  const DType dtype = args.out.dtype;
  for (Index seq_idx = args.first_seq; seq_idx < args.first_seq + args.num_seqs; ++seq_idx) {
    const SeqSpan span = seq_span(args.seqs, seq_idx);
    for (Index i = 0; i < span.num_rows; ++i)
      for (Index head = 0; head < args.q.dim(1); ++head) {
        const Index row = span.first_row + i;
        const std::vector<float> o = attend(args, seq_idx, row, head, span.context_len + i + 1);
        for (Index d = 0; d < args.kv.head_dim; ++d) {
          float value = rounded(o[static_cast<size_t>(d)], dtype);
          if (!args.gate.empty())
            value *= rounded(1.0f / (1.0f + std::exp(-Elements(args.gate).at(row, head, d))), dtype);
          Elements(args.out).set(value, row, head, d);
        }
      }
  }
}

}  // namespace longspan::ops::reference
