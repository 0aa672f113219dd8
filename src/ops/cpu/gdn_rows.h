// The row-wise parts of the gated delta rule that decode and prefill share: gates, l2 norm, gated output
// norm. Compiled once a SIMD target, like vectors.h.

#if defined(LONGSPAN_OPS_CPU_GDN_ROWS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_OPS_CPU_GDN_ROWS_H_
#undef LONGSPAN_OPS_CPU_GDN_ROWS_H_
#else
#define LONGSPAN_OPS_CPU_GDN_ROWS_H_
#endif

#include <cmath>

#include "ops/cpu/gdn.h"
#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

inline constexpr Index kGateRows = kGdnChunk;

// The gates of up to 64 rows of one value head: beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias).
struct Gates {
  alignas(64) float beta[kGateRows];
  alignas(64) float g[kGateRows];
};

template <class T>
void read_gates(const GatedDelta& args, Index first_row, Index num_rows, Index head, Gates& gates) {
  const T* a = args.a.as<const T>() + first_row * args.a.stride(0) + head;
  const T* b = args.b.as<const T>() + first_row * args.b.stride(0) + head;
  const float dt_bias = args.dt_bias.as<float>()[head];
  for (Index i = 0; i < num_rows; ++i) {
    gates.beta[i] = static_cast<float>(b[i * args.b.stride(0)]);
    gates.g[i] = static_cast<float>(a[i * args.a.stride(0)]) + dt_bias;
  }
  const float rate = -std::exp(args.a_log.as<float>()[head]);
  for_each_vector(num_rows, [&](Index i, auto extent) HWY_ATTR {
    store(sigmoid(load(gates.beta + i, extent)), gates.beta + i, extent);
    store(hn::Mul(set(rate), softplus(load(gates.g + i, extent))), gates.g + i, extent);
  });
}

// 1 / |x| from |x|^2, the l2 norm of MODEL 2.5: sum (not mean), eps inside the root.
HWY_INLINE Vec inverse_norm(Vec sum_squares) {
  return hn::Div(set(1.0f), hn::Sqrt(hn::Add(sum_squares, set(1e-6f))));
}

// out = rnd(o * rsqrt(mean(o^2) + eps) * norm * silu(z))
template <class T>
void write_gated_norm(const float* o, const T* z, const float* norm, float eps, Index n, T* out) {
  const float inv_rms = 1.0f / std::sqrt(sum_of_squares(o, n) / static_cast<float>(n) + eps);
  for_each_vector(n, [&](Index j, auto extent) HWY_ATTR {
    const Vec o_hat = hn::Mul(load(o + j, extent), set(inv_rms));
    const Vec gate = silu(load(z + j, extent));
    store(hn::Mul(hn::Mul(o_hat, load(norm + j, extent)), gate), out + j, extent);
  });
}

// Row `row` of head `head` of a [num_tokens, num_heads, dim] view.
template <class T>
T* head_row(const TensorView& view, Index row, Index head) {
  return view.as<T>() + row * view.stride(0) + head * view.stride(1);
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
