// Somebody else's product, for comparison only: nothing of Longspan links it.
#pragma once

#include "core/tensor.h"

namespace longspan::bench {

// What the product below computes in: bf16, or f32 where oneDNN has no bf16 product for this processor.
DType yardstick_dtype();

// Seconds of the best of several runs of out [m, n] = x [m, k] w^T through `num_weights` weights in turn,
// oneDNN choosing their layout; 0 when this build has none.
double yardstick_seconds(Index m, Index n, Index k, size_t num_weights, double budget_seconds);

}  // namespace longspan::bench
