// This build has no matrix units for products of few rows: gemv.cc and packed_gemv.cc take all of them.
#include "ops/device/kernels.h"

namespace longspan::ops::device {

bool gemv_mma(const Context&, const Matmul&) { return false; }
bool gemv_mma_swiglu(const Context&, const Matmul&) { return false; }
bool w8a16_mma(const Context&, const Matmul&, const CodeRows&, const Matmul*) { return false; }
bool w8a16_mma_swiglu(const Context&, const Matmul&, const CodeRows&) { return false; }

}  // namespace longspan::ops::device
