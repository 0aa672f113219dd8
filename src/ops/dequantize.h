// One element of a quantised part, by the formula of QuantizedPart: slow, exact, what everything else must
// match. And the scales of a quantised cache.
#pragma once

#include "ops/ops.h"

namespace longspan::ops {

inline float value_of(const TensorView& view, Index offset) {
  float value = 0;
  dispatch_dtype(view.dtype, [&]<class T>() { value = static_cast<float>(view.as<T>()[offset]); });
  return value;
}

inline float dequantized(const QuantizedPart& part, Index n, Index k) {
  const Index group = part.group_of.empty() ? k / part.group_size : part.group_of.as<int32_t>()[k];
  const float scale = value_of(part.scales, n / part.scale_rows * part.scales.stride(0) + group);
  if (part.kind == CodeKind::kE4M3)
    return static_cast<float>(part.codes.as<f8e4m3>()[n * part.codes.stride(0) + k]) * scale;
  const uint8_t pair = part.codes.as<uint8_t>()[n * part.codes.stride(0) + k / 2];
  const int code = k % 2 == 0 ? pair & 15 : pair >> 4;
  const int zero = part.zeros.empty() ? 8 : part.zeros.as<uint8_t>()[n * part.zeros.stride(0) + group];
  return static_cast<float>(code - zero) * scale;
}

// What a code of K (plane 0) or V (plane 1) is multiplied with; for scales in host memory.
inline float kv_scale(const KvCache& kv, Index plane, Index kv_head) {
  return kv.scales.empty() ? 1.0f : kv.scales.as<float>()[plane * kv.scales.stride(0) + kv_head];
}

}  // namespace longspan::ops
