// The CPU backend: SIMD kernels (Highway, AMX where the processor has it) over a thread pool.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace longspan::ops::cpu {

struct CpuOptions {
  int num_threads = 0;  // 0: as many as the process may use
};

std::unique_ptr<Backend> make_backend(const CpuOptions& options);

// What the pack functions make of these parts.
PackedBytes packed_bytes(std::span<const WeightPart> parts, Packing packing, DType dtype);

}  // namespace longspan::ops::cpu
