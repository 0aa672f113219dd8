// Operations on rows: gather, RMS norm with residual add, SwiGLU. Memory-bound: each row is read and written
// once, rows are spread over the pool, and a row's bits depend on that row alone.
#include <cmath>
#include <cstring>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rows.cc"
#include <hwy/foreach_target.h>

#include "ops/cpu/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

template <class T>
void add_in_place(T* x, const T* delta, Index n) {
  for_each_vector(n, [&](Index j, auto extent) HWY_ATTR {
    store(hn::Add(load(x + j, extent), load(delta + j, extent)), x + j, extent);
  });
}

template <class T>
void scale_zero_centered(const T* x, float inv_rms, const float* weight, Index n, T* out) {
  for_each_vector(n, [&](Index j, auto extent) HWY_ATTR {
    const Vec x_hat = hn::Mul(load(x + j, extent), set(inv_rms));
    store(hn::Mul(x_hat, hn::Add(set(1.0f), load(weight + j, extent))), out + j, extent);
  });
}

template <class T>
void round_then_scale(const T* x, float inv_rms, const float* weight, Index n, T* out) {
  T rounded[HWY_MAX_BYTES / sizeof(float)];
  for_each_vector(n, [&](Index j, auto extent) HWY_ATTR {
    store(hn::Mul(load(x + j, extent), set(inv_rms)), rounded);
    store(hn::Mul(load(rounded), load(weight + j, extent)), out + j, extent);
  });
}

template <class T>
void rms_norm_rows_of(const RmsNorm& args, Index begin, Index end) {
  const Index n = args.x.dim(1);
  const float* weight = args.weight.as<float>();
  for (Index i = begin; i < end; ++i) {
    T* x = args.x.as<T>() + i * args.x.stride(0);
    T* out = args.out.as<T>() + i * args.out.stride(0);
    if (!args.delta.empty()) add_in_place(x, args.delta.as<const T>() + i * args.delta.stride(0), n);
    const float inv_rms = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + args.eps);
    if (args.kind == NormKind::kZeroCentered)
      scale_zero_centered(x, inv_rms, weight, n, out);
    else
      round_then_scale(x, inv_rms, weight, n, out);
  }
}

template <class T>
void swiglu_rows_of(const SwiGlu& args, Index begin, Index end) {
  const Index n = args.out.dim(1);
  for (Index i = begin; i < end; ++i) {
    const T* gate = args.gate_up.as<const T>() + i * args.gate_up.stride(0);
    const T* up = gate + n;
    T* out = args.out.as<T>() + i * args.out.stride(0);
    for_each_vector(n, [&](Index j, auto extent) HWY_ATTR {
      store(hn::Mul(silu(load(gate + j, extent)), load(up + j, extent)), out + j, extent);
    });
  }
}

void rms_norm_rows(const RmsNorm& args, Index begin, Index end) {
  dispatch_dtype(args.x.dtype, [&]<class T>() { rms_norm_rows_of<T>(args, begin, end); });
}

void swiglu_rows(const SwiGlu& args, Index begin, Index end) {
  dispatch_dtype(args.out.dtype, [&]<class T>() { swiglu_rows_of<T>(args, begin, end); });
}

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(swiglu_rows);

// Elements a task should have at least: below that, waking a thread costs more than it saves.
constexpr Index kTaskElements = 32768;

template <class Fn>
void parallel_rows(const Context& context, Index num_rows, Index row_elements, const Fn& fn) {
  const Index rows = std::max<Index>(1, kTaskElements / std::max<Index>(1, row_elements));
  context.pool.parallel_for((num_rows + rows - 1) / rows, [&](int64_t task, int) {
    fn(task * rows, std::min(num_rows, (task + 1) * rows));
  });
}

}  // namespace

void gather_rows(const Context& context, const GatherRows& args) {
  const Index n = args.out.dim(1);
  const auto element_bytes = static_cast<Index>(dtype_size(args.x.dtype));
  const int32_t* rows = args.rows.as<int32_t>();
  const char* x = static_cast<const char*>(args.x.data);
  char* out = static_cast<char*>(args.out.data);
  parallel_rows(context, args.out.dim(0), n, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i)
      std::memcpy(out + i * args.out.stride(0) * element_bytes,
                  x + rows[i] * args.x.stride(0) * element_bytes, static_cast<size_t>(n * element_bytes));
  });
}

void rms_norm(const Context& context, const RmsNorm& args) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(rms_norm_rows);
  parallel_rows(context, args.x.dim(0), args.x.dim(1),
                [&](Index begin, Index end) { kernel(args, begin, end); });
}

void swiglu(const Context& context, const SwiGlu& args) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(swiglu_rows);
  parallel_rows(context, args.out.dim(0), 2 * args.out.dim(1),
                [&](Index begin, Index end) { kernel(args, begin, end); });
}

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
