// Prompt attention of longspan on a Hygon DCU by DTK's flash attention, whose functions take tensors of
// LibTorch: this file is all that knows both. Not part of the program; scripts/build_dtk_attention compiles
// it against the torch and flash_attn of the machine, docs/dcu.md says what for.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <vector>

#include "ops/device/prefill_interface.h"

#ifdef USE_ROCM
#include <ATen/hip/impl/HIPGuardImplMasqueradingAsCUDA.h>
#include <ATen/hip/impl/HIPStreamMasqueradingAsCUDA.h>
#endif

using MaybeTensor = c10::optional<at::Tensor>;

// What flash_attn may export, by the version. Weak: null where it does not.
__attribute__((weak)) std::vector<at::Tensor> hg_prefix_prefill_varlen_fwd(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, MaybeTensor& out,
    const at::Tensor& cu_seqlens_q, MaybeTensor& cu_seqlens_k, at::Tensor& seqused_k, MaybeTensor& alibi_slopes,
    at::Tensor& block_table, int max_seqlen_q, int max_seqlen_k, float p_dropout, float softmax_scale,
    bool zero_tensors, bool is_causal, int window_size_left, int window_size_right, float softcap,
    bool return_softmax, int layout, MaybeTensor scales_q, MaybeTensor scales_k, MaybeTensor scales_v,
    MaybeTensor sinks, bool is_bf16_output);
__attribute__((weak)) std::vector<at::Tensor> prefix_prefill_varlen_fwd(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, MaybeTensor& out,
    const at::Tensor& cu_seqlens_q, MaybeTensor& cu_seqlens_k, at::Tensor& seqused_k, MaybeTensor& alibi_slopes,
    at::Tensor& block_table, int max_seqlen_q, int max_seqlen_k, float p_dropout, float softmax_scale,
    bool zero_tensors, bool is_causal, int window_size_left, int window_size_right, float softcap,
    bool return_softmax, int layout, MaybeTensor scales_q, MaybeTensor scales_k, MaybeTensor scales_v,
    bool is_bf16_output);

namespace {

constexpr int kTokenMajor = 1;  // layout: [page, token, head, dim]
constexpr int kNoWindow = -1;

#ifdef USE_ROCM
// ROCm's torch calls its devices CUDA.
constexpr at::DeviceType kDeviceType = at::kCUDA;
// Torch's current device and stream are the caller's while it lives.
class InStream {
 public:
  explicit InStream(const LongspanPrefill& call)
      : guard_(c10::hip::getStreamFromExternalMasqueradingAsCUDA(static_cast<hipStream_t>(call.stream),
                                                                 static_cast<c10::DeviceIndex>(call.device))) {}

 private:
  c10::hip::HIPStreamGuardMasqueradingAsCUDA guard_;
};
#else
// A torch for the CPU, against which this was tried: memory is the host's, and there is no stream.
constexpr at::DeviceType kDeviceType = at::kCPU;
struct InStream {
  explicit InStream(const LongspanPrefill&) {}
};
#endif

at::Tensor tensor(const LongspanPrefill& call, const void* data, at::IntArrayRef sizes,
                  at::IntArrayRef strides, at::ScalarType dtype) {
  const at::Device device(kDeviceType, kDeviceType == at::kCPU ? -1 : static_cast<c10::DeviceIndex>(call.device));
  return at::from_blob(const_cast<void*>(data), sizes, strides, at::TensorOptions().dtype(dtype).device(device));
}

void attend(const LongspanPrefill& c) {
  const c10::InferenceMode inference;
  const InStream stream(c);
  const at::ScalarType dtype = c.dtype == LONGSPAN_PREFILL_BF16 ? at::kBFloat16 : at::kHalf;
  const int64_t row = int64_t{c.num_kv_heads} * c.head_dim;
  const auto rows = [&](const void* data, int64_t row_stride, int64_t head_stride) {
    return tensor(c, data, {c.num_rows, c.num_q_heads, c.head_dim}, {row_stride, head_stride, 1}, dtype);
  };
  const auto pages = [&](const void* data) {
    return tensor(c, data, {c.num_pages, c.page_tokens, c.num_kv_heads, c.head_dim},
                  {c.page_tokens * row, row, c.head_dim, 1}, dtype);
  };
  const at::Tensor q = rows(c.q, c.q_row_stride, c.q_head_stride), k = pages(c.k), v = pages(c.v),
                   starts = tensor(c, c.query_start_loc, {c.num_seqs + 1}, {1}, at::kInt);
  at::Tensor lengths = tensor(c, c.seq_lens, {c.num_seqs}, {1}, at::kInt),
             table = tensor(c, c.block_table, {c.num_seqs, c.max_pages}, {c.max_pages, 1}, at::kInt);
  MaybeTensor out = rows(c.out, c.out_row_stride, c.out_head_stride), no_starts, no_slopes;
  const int max_keys = c.page_tokens * c.max_pages;
  const auto call = [&](auto function, auto... rest) {
    return function(q, k, v, out, starts, no_starts, lengths, no_slopes, table, c.num_rows, max_keys,
                    /*p_dropout=*/0.0f, c.scale, /*zero_tensors=*/false, /*is_causal=*/true, kNoWindow,
                    /*window_size_right=*/0, /*softcap=*/0.0f, /*return_softmax=*/false, kTokenMajor,
                    MaybeTensor(), MaybeTensor(), MaybeTensor(), rest...);
  };
  const bool is_bf16 = dtype == at::kBFloat16;
  std::vector<at::Tensor> result;
  if (hg_prefix_prefill_varlen_fwd != nullptr)
    result = call(hg_prefix_prefill_varlen_fwd, MaybeTensor(), is_bf16);
  else if (prefix_prefill_varlen_fwd != nullptr)
    result = call(prefix_prefill_varlen_fwd, is_bf16);
  TORCH_CHECK(!result.empty(), "flash_attn gave nothing back");
  if (result[0].data_ptr() == c.out) return;
  // One that takes no `out`. Rows before the first of these sequences belong to others.
  const int64_t first = starts[0].item<int32_t>(), end = starts[c.num_seqs].item<int32_t>();
  out->slice(0, first, end).copy_(result[0].slice(0, first, end));
}

int32_t say(const char* what, char* error, size_t error_size) {
  std::snprintf(error, error_size, "%s", what);
  return 1;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int32_t longspan_prefill_version() { return LONGSPAN_PREFILL_VERSION; }

__attribute__((visibility("default"))) const char* longspan_prefill_name() {
  if (hg_prefix_prefill_varlen_fwd != nullptr)
    return "flash_attn's hg_prefix_prefill_varlen_fwd, torch " TORCH_VERSION;
  if (prefix_prefill_varlen_fwd != nullptr)
    return "flash_attn's prefix_prefill_varlen_fwd, torch " TORCH_VERSION;
  return "a flash_attn without prefix_prefill_varlen_fwd, torch " TORCH_VERSION;
}

__attribute__((visibility("default"))) int32_t longspan_prefill(const LongspanPrefill* call, char* error,
                                                                size_t error_size) {
  try {
    if (int64_t{call->page_tokens} * call->max_pages > std::numeric_limits<int>::max())
      return say("more keys than an int counts", error, error_size);
    attend(*call);
    return 0;
  } catch (const std::exception& caught) {
    return say(caught.what(), error, error_size);
  } catch (...) {
    return say("an exception without a text", error, error_size);
  }
}

}  // extern "C"
