// The published shapes that the page plan's known values are about (whole model, before division over ranks).
#pragma once

#include "cache/page_plan.h"

namespace longspan::cache {

// Three linear layers, one full, and so on; the convolution carries q and k (16 key heads each) and v.
inline CacheSpec qwen(int64_t num_layers, int64_t num_kv_heads, int64_t num_v_heads) {
  CacheSpec spec;
  for (int64_t i = 0; i < num_layers; ++i)
    spec.layers.push_back(i % 4 == 3 ? LayerKind::kAttention : LayerKind::kState);
  spec.num_kv_heads = num_kv_heads;
  spec.head_dim = 256;
  spec.conv_kernel = 4;
  spec.conv_dim = 2 * 16 * 128 + num_v_heads * 128;
  spec.num_v_heads = num_v_heads;
  spec.v_dim = 128;
  spec.k_dim = 128;
  return spec;
}

inline CacheSpec qwen_0_8b() { return qwen(24, 2, 16); }  // the 2B has the same cache
inline CacheSpec qwen_4b() { return qwen(32, 4, 32); }    // and so has the 9B
inline CacheSpec qwen_27b() { return qwen(64, 4, 48); }

// An arbitrary dense model.
inline CacheSpec dense(int64_t num_layers) {
  CacheSpec spec;
  spec.layers.assign(static_cast<size_t>(num_layers), LayerKind::kAttention);
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  return spec;
}

}  // namespace longspan::cache
