// Activations, before their rounding.
#pragma once

#include "ops/device/types.h"

namespace longspan::ops::device {

DEVICE_FN float silu(float x) { return x / (1.0f + expf(-x)); }
DEVICE_FN float swiglu_of(float gate, float up) { return silu(gate) * up; }

}  // namespace longspan::ops::device
