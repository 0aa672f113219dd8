// Rotary angles, and the write of q, k and v: norm, rotation, one rounding. Memory bound: each row is read
// and written once.
#include <atomic>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/dequantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "ops/cpu/rope.h"
#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// y = the head as fp32, normed when there is a weight.
template <class T>
HWY_INLINE void load_head(const HeadForm& form, const T* x, float* y) {
  const Index n = form.head_dim;
  if (form.norm == nullptr) {
    for_each_vector(n, [&](Index d, auto extent) HWY_ATTR { store(load(x + d, extent), y + d, extent); });
    return;
  }
  const Vec scale = set(1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + form.eps));
  const bool zero_centered = form.norm_kind == NormKind::kZeroCentered;
  T rounded[HWY_MAX_BYTES / sizeof(float)];
  for_each_vector(n, [&](Index d, auto extent) HWY_ATTR {
    Vec x_hat = hn::Mul(load(x + d, extent), scale);
    Vec weight = load(form.norm + d, extent);
    if (zero_centered) {
      weight = hn::Add(set(1.0f), weight);
    } else {
      store(x_hat, rounded);
      x_hat = load(rounded);
    }
    store(hn::Mul(x_hat, weight), y + d, extent);
  });
}

// Pairs (j, j + half): a rotation by the token's angles.
HWY_INLINE void rotate(const float* cosines, const float* sines, Index half, float* y) {
  for_each_vector(half, [&](Index j, auto extent) HWY_ATTR {
    const Vec low = load(y + j, extent), high = load(y + half + j, extent);
    const Vec c = load(cosines + j, extent), s = load(sines + j, extent);
    store(hn::Sub(hn::Mul(low, c), hn::Mul(high, s)), y + j, extent);
    store(hn::MulAdd(high, c, hn::Mul(low, s)), y + half + j, extent);
  });
}

// out may be x: the head is whole in `workspace` before the first store.
template <class T>
void write_head(const HeadForm& form, const T* x, const float* cos_sin, float* workspace, T* out) {
  load_head(form, x, workspace);
  rotate(cos_sin, cos_sin + form.rotary_dim / 2, form.rotary_dim / 2, workspace);
  for_each_vector(form.head_dim, [&](Index d, auto extent)
                                     HWY_ATTR { store(load(workspace + d, extent), out + d, extent); });
}

// out = e4m3(x / scale); how many lay beyond +-448.
template <class T>
Index write_codes(const T* x, Index n, float scale, f8e4m3* out) {
  size_t num_saturated = 0;
  for_each_vector(n, [&](Index d, auto extent) HWY_ATTR {
    const Vec value = hn::Div(load(x + d, extent), set(scale));
    num_saturated += hn::CountTrue(F32(), hn::Gt(hn::Abs(value), set(448.0f)));
    store(value, out + d, extent);
  });
  return static_cast<Index>(num_saturated);
}

Index write_codes_f32(const float* x, Index n, float scale, f8e4m3* out) {
  return write_codes(x, n, scale, out);
}
Index write_codes_bf16(const bf16* x, Index n, float scale, f8e4m3* out) {
  return write_codes(x, n, scale, out);
}
void write_head_f32(const HeadForm& form, const float* x, const float* cos_sin, float* workspace,
                    float* out) {
  write_head(form, x, cos_sin, workspace, out);
}
void write_head_bf16(const HeadForm& form, const bf16* x, const float* cos_sin, float* workspace, bf16* out) {
  write_head(form, x, cos_sin, workspace, out);
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {

HWY_EXPORT(write_codes_f32);
HWY_EXPORT(write_codes_bf16);
HWY_EXPORT(write_head_f32);
HWY_EXPORT(write_head_bf16);

Index write_codes(const float* x, Index n, float scale, f8e4m3* out) {
  return HWY_DYNAMIC_DISPATCH(write_codes_f32)(x, n, scale, out);
}
Index write_codes(const bf16* x, Index n, float scale, f8e4m3* out) {
  return HWY_DYNAMIC_DISPATCH(write_codes_bf16)(x, n, scale, out);
}
void write_head(const HeadForm& form, const float* x, const float* cos_sin, float* workspace, float* out) {
  HWY_DYNAMIC_DISPATCH(write_head_f32)(form, x, cos_sin, workspace, out);
}
void write_head(const HeadForm& form, const bf16* x, const float* cos_sin, float* workspace, bf16* out) {
  HWY_DYNAMIC_DISPATCH(write_head_bf16)(form, x, cos_sin, workspace, out);
}

constexpr Index kTaskTokens = 16;

HeadForm head_form(const QkRopeWrite& args, const TensorView& norm) {
  return {.head_dim = args.q.dim(2),
          .rotary_dim = args.cos_sin.dim(1),
          .norm = norm.empty() ? nullptr : norm.as<float>(),
          .norm_kind = args.norm_kind,
          .eps = args.eps};
}

template <class T>
T* head_at(const TensorView& view, Index token, Index head) {
  return view.as<T>() + token * view.stride(0) + head * view.stride(1);
}

// The token's k and v in the cache. E: its element, T or f8e4m3. workspace: [2, head_dim].
template <class T, class E>
void write_cached(const QkRopeWrite& args, Index token, Index slot, float* workspace) {
  const KvCache& kv = args.kv;
  const Index head_dim = kv.head_dim;
  const Index row_elements = kv.num_kv_heads * head_dim;
  char* page = static_cast<char*>(kv.data) + slot / kv.page_tokens * kv.page_stride_bytes;
  E* k_row = reinterpret_cast<E*>(page) + slot % kv.page_tokens * row_elements;
  E* v_row = k_row + kv.page_tokens * row_elements;
  const float* cos_sin = args.cos_sin.as<float>() + token * args.cos_sin.stride(0);
  const HeadForm k_form = head_form(args, args.k_norm);
  Index num_saturated = 0;
  for (Index head = 0; head < kv.num_kv_heads; ++head) {
    const T* k = head_at<T>(args.k, token, head);
    const T* v = head_at<T>(args.v, token, head);
    if constexpr (std::is_same_v<T, E>) {
      write_head(k_form, k, cos_sin, workspace, k_row + head * head_dim);
      std::copy_n(v, head_dim, v_row + head * head_dim);
    } else {
      T* rotated = reinterpret_cast<T*>(workspace + head_dim);
      write_head(k_form, k, cos_sin, workspace, rotated);
      num_saturated += write_codes(rotated, head_dim, kv_scale(kv, 0, head), k_row + head * head_dim);
      num_saturated += write_codes(v, head_dim, kv_scale(kv, 1, head), v_row + head * head_dim);
    }
  }
  if (num_saturated > 0 && !kv.saturated.empty())
    std::atomic_ref(*kv.saturated.as<int64_t>()).fetch_add(num_saturated, std::memory_order_relaxed);
}

template <class T>
void write_token(const QkRopeWrite& args, Index token, float* workspace) {
  const float* cos_sin = args.cos_sin.as<float>() + token * args.cos_sin.stride(0);
  const HeadForm q_form = head_form(args, args.q_norm);
  for (Index head = 0; head < args.q.dim(1); ++head)
    write_head(q_form, head_at<T>(args.q, token, head), cos_sin, workspace,
               head_at<T>(args.q_out, token, head));

  const Index slot = args.slots.as<int32_t>()[token];
  if (slot < 0) return;
  if (args.kv.dtype == DType::kF8E4M3)
    write_cached<T, f8e4m3>(args, token, slot, workspace);
  else
    write_cached<T, T>(args, token, slot, workspace);
}

template <class T>
void write_tokens(const Context& context, const QkRopeWrite& args) {
  const Index num_tokens = args.q.dim(0);
  context.scratch.reserve(static_cast<size_t>(2 * args.q.dim(2)) * sizeof(float));
  context.pool.parallel_for((num_tokens + kTaskTokens - 1) / kTaskTokens, [&](int64_t task, int thread) {
    const Index end = std::min(num_tokens, (task + 1) * kTaskTokens);
    for (Index token = task * kTaskTokens; token < end; ++token)
      write_token<T>(args, token, static_cast<float*>(context.scratch.of_thread(thread)));
  });
}

}  // namespace

void rope_angles(const Context& context, const RopeAngles& args) {
  const int32_t* positions = args.positions.as<int32_t>();
  const float* inv_freq = args.inv_freq.as<float>();
  const Index num_tokens = args.positions.dim(0);
  const Index half = args.inv_freq.dim(0);
  context.pool.parallel_for((num_tokens + kTaskTokens - 1) / kTaskTokens, [&](int64_t task, int) {
    const Index end = std::min(num_tokens, (task + 1) * kTaskTokens);
    for (Index token = task * kTaskTokens; token < end; ++token) {
      float* row = args.cos_sin.as<float>() + token * args.cos_sin.stride(0);
      for (Index j = 0; j < half; ++j) {
        // The library's functions reduce any fp32 angle exactly: position 1,000,000 is as good as 1.
        const float angle = static_cast<float>(positions[token]) * inv_freq[j];
        row[j] = std::cos(angle);
        row[half + j] = std::sin(angle);
      }
    }
  });
}

void qk_rope_write(const Context& context, const QkRopeWrite& args) {
  if (args.q.dtype == DType::kF32) return write_tokens<float>(context, args);
  CHECK_MSG(args.q.dtype == DType::kBF16,
            "[qk_rope_write] dtype on the CPU: got {}, need float32 or bfloat16", dtype_name(args.q.dtype));
  write_tokens<bf16>(context, args);
}

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
