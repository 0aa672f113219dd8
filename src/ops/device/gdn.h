// What the two forms of the gated delta rule share: their inputs, gates and norms.
#pragma once

#include "ops/device/activation.h"
#include "ops/device/launch.h"
#include "ops/device/paged_kv.h"
#include "ops/device/state.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {

template <class T>
struct GdnInputs {
  Heads<T> q, k;                 // [num_tokens, num_k_heads, k_dim]
  Heads<T> v, z;                 // [num_tokens, num_v_heads, v_dim]
  Matrix<T> a, b;                // [num_tokens, num_v_heads]
  Global<float> a_log, dt_bias;  // [num_v_heads]
  StatePages<T> state;
  Global<int32_t> pages;  // [num_seqs]
  SeqTable seqs;
  int heads_per_key;

  // log of the decay, and the write strength.
  DEVICE_FN float log_decay(int64_t row, int head) const {
    const float x = a.row(row).at(head) + dt_bias.get(head);
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    return -expf(a_log.get(head)) * softplus;
  }
  DEVICE_FN float beta(int64_t row, int head) const { return sigmoid(b.row(row).at(head)); }
};

template <class T>
GdnInputs<T> gdn_inputs(const GatedDelta& args) {
  return {.q = heads<T>(args.q),
          .k = heads<T>(args.k),
          .v = heads<T>(args.v),
          .z = heads<T>(args.z),
          .a = matrix<T>(args.a),
          .b = matrix<T>(args.b),
          .a_log = global<float>(args.a_log),
          .dt_bias = global<float>(args.dt_bias),
          .state = state_pages<T>(args.state),
          .pages = global<int32_t>(args.state_pages),
          .seqs = seq_table(args.seqs),
          .heads_per_key = static_cast<int>(args.state.num_v_heads / args.q.dim(1))};
}

// y = rnd(o * rsqrt(mean(o^2) + eps) * norm * silu(z))
template <class T>
struct GatedNorm {
  Heads<T> z, out;     // [num_tokens, num_v_heads, v_dim]
  Global<float> norm;  // [v_dim]
  float eps;
  int v_dim;

  DEVICE_FN float scale(float squares) const {
    return 1.0f / sqrtf(squares / static_cast<float>(v_dim) + eps);
  }
  DEVICE_FN void write(int64_t row, int head, int c, float normed, float gate) const {
    out.row(row, head).set(c, normed * silu(gate));
  }
};

template <class T>
GatedNorm<T> gated_norm(const GatedDelta& args) {
  return {.z = heads<T>(args.z),
          .out = heads<T>(args.out),
          .norm = global<float>(args.norm),
          .eps = args.eps,
          .v_dim = static_cast<int>(args.state.v_dim)};
}

}  // namespace longspan::ops::device
