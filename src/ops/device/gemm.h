// The own product of many rows, for kernels.h's gemm() and for what competes with it.
#pragma once

#include "ops/device/runtime.h"
#include "ops/ops.h"

namespace longspan::ops::device {

void gemm(Device& device, const Matmul& args);  // gemm.cc; of a dense weight

}  // namespace longspan::ops::device
