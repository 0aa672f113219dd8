// Stands in for the x86 kernels on other processors.
#include "ops/cpu/gemm_kernels.h"

namespace longspan::ops::cpu {

MatrixUnit amx() { return {}; }
BFloat16Unit avx512bf16() { return {}; }

}  // namespace longspan::ops::cpu
