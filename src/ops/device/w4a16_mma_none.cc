// This build has no matrix units for 4-bit products: packed_gemv.cc takes all of them.
#include "ops/device/kernels.h"

namespace longspan::ops::device {

bool w4a16_mma(const Context&, const Matmul&, const CodeRows&, const Matmul*) { return false; }
bool w4a16_mma_swiglu(const Context&, const Matmul&, const CodeRows&) { return false; }

}  // namespace longspan::ops::device
