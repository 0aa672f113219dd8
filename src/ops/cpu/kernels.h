// What the CPU backend's files offer each other: one function an operation, over the backend's pool and
// scratch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "ops/ops.h"

namespace longspan::ops::cpu {

// One scratch buffer a thread, grown on first use of a shape and kept: after warm-up no step allocates.
class Scratch {
 public:
  explicit Scratch(int num_threads) : buffers_(static_cast<size_t>(num_threads)) {}

  // Makes every thread's buffer at least size_bytes long; call it outside parallel loops. Contents are lost.
  void reserve(size_t size_bytes) {
    for (Buffer& buffer : buffers_)
      if (buffer.size_bytes() < size_bytes) buffer = Buffer(size_bytes);
  }
  void* of_thread(int thread) const { return buffers_[static_cast<size_t>(thread)].data(); }

 private:
  std::vector<Buffer> buffers_;
};

struct Context {
  ThreadPool& pool;
  Scratch& scratch;
};

std::string isa_name();  // matmul.cc: "avx512 amx-bf16", "avx2", ...: what the products run on

std::unique_ptr<Weight> pack(const Context& context, std::span<const TensorView> parts,
                             DType dtype);  // matmul.cc
std::unique_ptr<Weight> pack_gate_up(const Context& context, const TensorView& gate, const TensorView& up,
                                     DType dtype);
std::unique_ptr<Weight> pack_quantized(const Context& context, std::span<const WeightPart> parts,
                                       DType dtype);  // quantized_weight.cc
std::unique_ptr<Weight> pack_quantized_gate_up(const Context& context, const WeightPart& gate,
                                               const WeightPart& up, DType dtype);
void matmul(const Context& context, const Matmul& args);  // matmul.cc
void matmul_swiglu(const Context& context, const MatmulSwiGlu& args);
void embed(const Context& context, const Embed& args);

void gather_rows(const Context& context, const GatherRows& args);  // rows.cc
void rms_norm(const Context& context, const RmsNorm& args);
void swiglu(const Context& context, const SwiGlu& args);

void rope_angles(const Context& context, const RopeAngles& args);  // rope.cc
void qk_rope_write(const Context& context, const QkRopeWrite& args);

void attention(const Context& context, const Attention& args);  // attention.cc

void causal_conv(const Context& context, const CausalConv& args);  // gdn.cc
void gated_delta(const Context& context, const GatedDelta& args);

}  // namespace longspan::ops::cpu
