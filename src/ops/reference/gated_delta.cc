// Gated DeltaNet token by token: the convolution and the recurrence of MODEL 2.3 to 2.9, for prompts and
// decode alike.
#include <cmath>
#include <cstring>

#include "ops/reference/internal.h"

namespace longspan::ops::reference {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float silu(float x) { return x * sigmoid(x); }
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

void copy_view(const TensorView& from, const TensorView& to) {
  std::memcpy(to.data, from.data, from.size_bytes());
}

// Pages that want the state after `num_tokens` tokens of sequence `seq_idx`, the checkpoints among them.
template <class Fn>
void for_each_checkpoint(std::span<const StateCheckpoint> checkpoints, Index seq_idx, Index num_tokens,
                         const Fn& fn) {
  for (const StateCheckpoint& checkpoint : checkpoints)
    if (checkpoint.seq_idx == seq_idx && checkpoint.num_tokens == num_tokens) fn(checkpoint.page);
}

// Row i of a head, l2-normalised (sum, not mean; eps inside the root).
std::vector<float> unit_row(const TensorView& x, Index row, Index head) {
  std::vector<float> values(static_cast<size_t>(x.dim(2)));
  double sum = 0;
  for (size_t j = 0; j < values.size(); ++j) {
    values[j] = Elements(x).at(row, head, static_cast<Index>(j));
    sum += static_cast<double>(values[j]) * values[j];
  }
  for (float& value : values) value /= std::sqrt(static_cast<float>(sum) + 1e-6f);
  return values;
}

// One token of one value head: S <- alpha S; d = beta (v - k^T S); S <- S + k d^T; o = q^T S.
std::vector<float> delta_step(const GatedDelta& args, float* s, Index row, Index head) {
  const Index key_head = head / (args.state.num_v_heads / args.q.dim(1));
  const auto k_dim = static_cast<size_t>(args.state.k_dim);
  const auto v_dim = static_cast<size_t>(args.state.v_dim);
  const std::vector<float> q = unit_row(args.q, row, key_head);
  const std::vector<float> k = unit_row(args.k, row, key_head);
  const float beta = sigmoid(Elements(args.b).at(row, head));
  const float g = -std::exp(args.a_log.as<float>()[head]) *
                  softplus(Elements(args.a).at(row, head) + args.dt_bias.as<float>()[head]);
  const float alpha = std::exp(g);
  std::vector<float> memory(v_dim), o(v_dim);
  for (size_t i = 0; i < k_dim; ++i)
    for (size_t j = 0; j < v_dim; ++j) {
      s[i * v_dim + j] *= alpha;
      memory[j] += k[i] * s[i * v_dim + j];
    }
  for (size_t i = 0; i < k_dim; ++i)
    for (size_t j = 0; j < v_dim; ++j)
      s[i * v_dim + j] += k[i] * beta * (Elements(args.v).at(row, head, static_cast<Index>(j)) - memory[j]);
  const float scale = 1.0f / std::sqrt(static_cast<float>(k_dim));
  for (size_t i = 0; i < k_dim; ++i)
    for (size_t j = 0; j < v_dim; ++j) o[j] += q[i] * scale * s[i * v_dim + j];
  return o;
}

// y = rnd(o * rsqrt(mean(o^2) + eps) * norm * silu(z))
void write_gated_norm(const GatedDelta& args, const std::vector<float>& o, Index row, Index head) {
  double sum = 0;
  for (float value : o) sum += static_cast<double>(value) * value;
  const float scale = 1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(o.size())) + args.eps);
  for (size_t j = 0; j < o.size(); ++j) {
    const auto col = static_cast<Index>(j);
    Elements(args.out).set(
        o[j] * scale * args.norm.as<float>()[j] * silu(Elements(args.z).at(row, head, col)), row, head, col);
  }
}

}  // namespace

void causal_conv(const CausalConv& args) {
  const StateCache& state = args.state;
  const Index taps = state.conv_kernel;
  for (Index seq_idx = 0; seq_idx < args.seqs.num_seqs; ++seq_idx) {
    const SeqSpan span = seq_span(args.seqs, seq_idx);
    const Index page = args.state_pages.as<int32_t>()[seq_idx];
    const TensorView history = conv_state(state, page);
    if (span.context_len == 0) std::memset(history.data, 0, history.size_bytes());
    for (Index i = 0; i < span.num_rows; ++i) {
      const Index row = span.first_row + i;
      for (Index c = 0; c < state.conv_channels; ++c) {
        const float* w = args.weight.as<float>() + c * taps;
        float sum = 0;
        for (Index j = 0; j + 1 < taps; ++j) sum += w[j] * Elements(history).at(j, c);
        sum += w[taps - 1] * Elements(args.x).at(row, c);
        Elements(args.out).set(silu(sum), row, c);
        for (Index j = 0; j + 2 < taps; ++j) Elements(history).set(Elements(history).at(j + 1, c), j, c);
        Elements(history).set(Elements(args.x).at(row, c), taps - 2, c);
      }
      for_each_checkpoint(args.checkpoints, seq_idx, span.context_len + i + 1,
                          [&](Index to) { copy_view(history, conv_state(state, to)); });
    }
  }
}

void gated_delta(const GatedDelta& args) {
  const StateCache& state = args.state;
  for (Index seq_idx = 0; seq_idx < args.seqs.num_seqs; ++seq_idx) {
    const SeqSpan span = seq_span(args.seqs, seq_idx);
    const TensorView s = ssm_state(state, args.state_pages.as<int32_t>()[seq_idx]);
    if (span.context_len == 0) std::memset(s.data, 0, s.size_bytes());
    for (Index i = 0; i < span.num_rows; ++i) {
      for (Index head = 0; head < state.num_v_heads; ++head)
        write_gated_norm(
            args,
            delta_step(args, s.as<float>() + head * state.k_dim * state.v_dim, span.first_row + i, head),
            span.first_row + i, head);
      for_each_checkpoint(args.checkpoints, seq_idx, span.context_len + i + 1,
                          [&](Index to) { copy_view(s, ssm_state(state, to)); });
    }
  }
}

}  // namespace longspan::ops::reference
