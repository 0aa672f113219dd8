// Somebody else's bf16 product, for comparison only: nothing of Longspan links it.
#pragma once

#include "core/tensor.h"

namespace longspan::bench {

// Seconds of the best of several runs of out [m, n] = x [m, k] w^T, oneDNN choosing the layout of w; 0 when
// this build has none.
double yardstick_seconds(Index m, Index n, Index k, double budget_seconds);

}  // namespace longspan::bench
