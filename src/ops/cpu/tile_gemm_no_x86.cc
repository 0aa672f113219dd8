// Stands in for the x86 kernels on other processors.
#include "ops/cpu/gemm_kernels.h"

namespace longspan::ops::cpu {

GemmFn<bf16> amx_gemm() { return nullptr; }
GemmFn<bf16> avx512bf16_gemm() { return nullptr; }

}  // namespace longspan::ops::cpu
