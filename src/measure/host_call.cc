#include "measure/host_call.h"

#include <algorithm>

namespace longspan::measure {

size_t span_bytes(const TensorView& view) {
  if (view.empty() || view.num_elements() == 0) return 0;
  Index last = 0;
  for (int axis = 0; axis < view.shape.rank; ++axis) last += (view.dim(axis) - 1) * view.stride(axis);
  return static_cast<size_t>(last + 1) * dtype_size(view.dtype);
}

float value_at(const TensorView& view, Index offset) {
  switch (view.dtype) {
    case DType::kF32:
      return view.as<float>()[offset];
    case DType::kBF16:
      return static_cast<float>(view.as<bf16>()[offset]);
    case DType::kF16:
      return static_cast<float>(view.as<f16>()[offset]);
    case DType::kF8E4M3:
      return static_cast<float>(view.as<f8e4m3>()[offset]);
    case DType::kI32:
      return static_cast<float>(view.as<int32_t>()[offset]);
    default:
      break;
  }
  CHECK_MSG(false, "no value of {}", dtype_name(view.dtype));
  __builtin_unreachable();
}

void* HostCall::copied(const void* data, size_t size_bytes, Memory& memory) {
  if (size_bytes == 0) size_bytes = 1;  // an empty tensor keeps a place of its own
  Buffer& buffer = buffers_.emplace_back(size_bytes);
  memory.download(buffer.data(), data, size_bytes);
  return buffer.data();
}

HostCall::HostCall(const OpCall& call, Memory& memory) : call_(call) {
  for_each_view(call_, [&](const char*, TensorView& view, ViewRole) {
    if (span_bytes(view) > 0) view.data = copied(view.data, span_bytes(view), memory);
  });
  if (ops::KvCache* kv = kv_cache_of(call_))
    kv->data = copied(kv->data, static_cast<size_t>(kv->num_pages * kv->page_stride_bytes), memory);
  if (ops::StateCache* state = state_cache_of(call_))
    state->data =
        copied(state->data, static_cast<size_t>(state->num_pages * state->page_stride_bytes), memory);
}

namespace {

// At most `count` rows of axis 0, from the first to the last, evenly.
TensorView spread(const TensorView& view, Index count) {
  if (view.empty() || view.dim(0) <= count) return view;
  TensorView rows = view;
  const Index step = count == 1 ? 1 : (view.dim(0) - 1) / (count - 1);
  if (count == 1) rows.data = view.rows(view.dim(0) - 1, 1).data;
  rows.shape.dims[0] = count;
  rows.strides[0] = view.stride(0) * step;
  return rows;
}

}  // namespace

OpCall with_rows(const OpCall& call, Index max_rows) {
  OpCall cut = call;
  const Index count = std::max<Index>(1, max_rows);
  if (auto* op = std::get_if<ops::Matmul>(&cut)) {
    op->x = spread(op->x, count);
    op->out = spread(op->out, count);
  } else if (auto* product = std::get_if<ops::MatmulSwiGlu>(&cut)) {
    product->x = spread(product->x, count);
    product->gate_up = spread(product->gate_up, count);
    product->out = spread(product->out, count);
  }
  return cut;
}

}  // namespace longspan::measure
