// The delta rule for one token of one head, as MODEL 2.7 writes it, in fp32. Bound by memory: S [k_dim,
// v_dim] is read and written once (64 KB each way at 128 x 128).
#include "ops/cpu/gdn.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gdn_decode.cc"
#include <hwy/foreach_target.h>

#include "ops/cpu/gdn_rows.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// Columns of S a pass holds: 128 rows x 4 vectors of 64 bytes = 32 KB, so that the second pass reads L1.
constexpr Index kStripVectors = 4;

// The constants of one step.
struct DeltaStep {
  const float* q;  // [k_dim], normalised and scaled
  const float* k;  // [k_dim], normalised
  float alpha;
  float beta;
  Index k_dim;
  Index v_dim;
};

// Columns col .. + kVectors vectors, each of the extent given: S <- alpha S; d = beta (v - k^T S);
// S <- S + k d^T; o = q^T S.
template <class T, Index kVectors, class Extent>
void delta_strip(const DeltaStep& step, float* s, const T* v, float* o, Index col, Extent extent) {
  Vec memory[kVectors], d[kVectors], sum[kVectors];
  HWY_UNROLL(4)
  for (Index u = 0; u < kVectors; ++u) memory[u] = sum[u] = hn::Zero(F32());
  for (Index i = 0; i < step.k_dim; ++i) HWY_UNROLL(4)
  for (Index u = 0; u < kVectors; ++u)
    memory[u] = hn::MulAdd(set(step.k[i]), load(s + i * step.v_dim + col + u * lanes(), extent), memory[u]);
  HWY_UNROLL(4)
  for (Index u = 0; u < kVectors; ++u) {
    const Vec error = hn::NegMulAdd(set(step.alpha), memory[u], load(v + col + u * lanes(), extent));
    d[u] = hn::Mul(set(step.beta), error);
  }
  for (Index i = 0; i < step.k_dim; ++i) HWY_UNROLL(4)
  for (Index u = 0; u < kVectors; ++u) {
    float* at = s + i * step.v_dim + col + u * lanes();
    const Vec kept = hn::Mul(set(step.alpha), load(at, extent));
    const Vec updated = hn::MulAdd(set(step.k[i]), d[u], kept);
    store(updated, at, extent);
    sum[u] = hn::MulAdd(set(step.q[i]), updated, sum[u]);
  }
  HWY_UNROLL(4)
  for (Index u = 0; u < kVectors; ++u) store(sum[u], o + col + u * lanes(), extent);
}

template <class T>
void delta_step(const DeltaStep& step, float* s, const T* v, float* o) {
  Index col = 0;
  for (; col + kStripVectors * lanes() <= step.v_dim; col += kStripVectors * lanes())
    delta_strip<T, kStripVectors>(step, s, v, o, col, Whole());
  for (; col + lanes() <= step.v_dim; col += lanes()) delta_strip<T, 1>(step, s, v, o, col, Whole());
  if (col < step.v_dim) delta_strip<T, 1>(step, s, v, o, col, Part{step.v_dim - col});
}

// out = x / |x| * scale, as floats.
template <class T>
void unit_row(const T* x, Index n, float scale, float* out) {
  const Vec factor = hn::Mul(inverse_norm(set(sum_of_squares(x, n))), set(scale));
  for_each_vector(n, [&](Index j, auto extent)
                         HWY_ATTR { store(hn::Mul(load(x + j, extent), factor), out + j, extent); });
}

template <class T>
void decode_of(const GatedDelta& args, Index seq_idx, Index head, float* scratch) {
  const StateCache& state = args.state;
  const SeqRows seq = seq_rows(args.seqs, seq_idx);
  const Index row = seq.first_row;
  const Index key_head = head / (state.num_v_heads / args.q.dim(1));
  float* q = scratch;
  float* k = q + state.k_dim;
  float* o = k + state.k_dim;
  unit_row(head_row<const T>(args.q, row, key_head), state.k_dim,
           1.0f / std::sqrt(static_cast<float>(state.k_dim)), q);
  unit_row(head_row<const T>(args.k, row, key_head), state.k_dim, 1.0f, k);
  Gates gates;
  read_gates<T>(args, row, 1, head, gates);
  const DeltaStep step{q, k, std::exp(gates.g[0]), gates.beta[0], state.k_dim, state.v_dim};

  float* s = head_state(state, args.state_pages.as<int32_t>()[seq_idx], head);
  if (seq.context_len == 0) std::fill_n(s, state.k_dim * state.v_dim, 0.0f);
  delta_step(step, s, head_row<const T>(args.v, row, head), o);
  write_gated_norm(o, head_row<const T>(args.z, row, head), args.norm.as<float>(), args.eps, state.v_dim,
                   head_row<T>(args.out, row, head));
  for (const StateCheckpoint& checkpoint : args.checkpoints)
    if (checkpoint.seq_idx == seq_idx && checkpoint.num_tokens == seq.context_len + 1)
      std::copy_n(s, state.k_dim * state.v_dim, head_state(state, checkpoint.page, head));
}

void decode(const GatedDelta& args, Index seq_idx, Index head, float* scratch) {
  dispatch_dtype(args.q.dtype, [&]<class T>() { decode_of<T>(args, seq_idx, head, scratch); });
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {
HWY_EXPORT(decode);
}  // namespace

size_t gdn_decode_scratch_bytes(const GatedDelta& args) {
  return static_cast<size_t>(2 * args.state.k_dim + args.state.v_dim) * sizeof(float);
}

void gdn_decode(const GatedDelta& args, Index seq_idx, Index head, void* scratch) {
  HWY_DYNAMIC_DISPATCH(decode)(args, seq_idx, head, static_cast<float*>(scratch));
}

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
