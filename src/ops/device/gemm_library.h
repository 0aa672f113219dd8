// The vendor's matrix products, where there are any: gemm_cublas.cc, gemm_rocblas.cc or gemm_none.cc.
#pragma once

#include <memory>

#include "ops/device/runtime.h"
#include "ops/ops.h"

namespace longspan::ops::device {

// Not thread-safe. Works in the device's stream.
class GemmLibrary final {
 public:
  explicit GemmLibrary(Device& device);
  ~GemmLibrary();

  const char* name() const;  // "cublasLt 13.0", "own products: <why>"; empty where none is looked for
  // False when the library has no kernel for this shape: nothing is done then. A shape's kernel is chosen
  // once, by (dtype, N, K): the order of a sum does not depend on the number of rows.
  bool matmul(const Matmul& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan::ops::device
