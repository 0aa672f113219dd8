// Activations, before their rounding.
#pragma once

#include "ops/device/types.h"

namespace longspan::ops::device {

// 1 / (1 + e^-x) to a few units in the last place of float: rows of a prompt take millions of them, and with
// the exact exponential and division kernels that memory should bound were bound by instructions.
DEVICE_FN float sigmoid(float x) { return reciprocal_approx(1.0f + exp2_approx(x * -1.44269504f)); }
DEVICE_FN float silu(float x) { return x * sigmoid(x); }
DEVICE_FN float swiglu_of(float gate, float up) { return silu(gate) * up; }

}  // namespace longspan::ops::device
