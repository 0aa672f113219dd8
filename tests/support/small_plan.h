// A page plan for tests that need no model.
#pragma once

#include "cache/page_plan.h"

namespace longspan::testing {

// Two attention and four state layers, pages of 64 tokens.
inline cache::PagePlan small_plan(cache::Layout layout) {
  const auto s = cache::LayerKind::kState, a = cache::LayerKind::kAttention;
  return cache::plan_pages({.layers = {s, s, a, s, s, a},
                            .num_kv_heads = 1,
                            .head_dim = 16,
                            .conv_kernel = 4,
                            .conv_dim = 8,
                            .num_v_heads = 1,
                            .v_dim = 8,
                            .k_dim = 8},
                           {.alignment = 16, .layout = layout, .min_page_tokens = 64});
}

}  // namespace longspan::testing
