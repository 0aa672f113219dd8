// How qk_rope_write treats one head; rope.cc hands it to its SIMD half.
#pragma once

#include "ops/ops.h"

namespace longspan::ops::cpu {

struct HeadForm {
  Index head_dim;
  Index rotary_dim;
  const float* norm;  // [head_dim] or nullptr
  NormKind norm_kind;
  float eps;
};

}  // namespace longspan::ops::cpu
