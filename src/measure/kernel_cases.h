// The operations at the shapes of a model, ready to be run again and again on memory that no cache holds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/model_config.h"
#include "ops/op_work.h"

namespace longspan::measure {

// What a model's operations are made of; the default is Qwen3.5-0.8B's.
struct KernelShapes {
  std::string source = "qwen3.5-0.8b";
  Index hidden = 1024;
  Index mlp = 3584;
  Index vocab = 248320;
  Index num_q_heads = 8;
  Index num_kv_heads = 2;
  Index head_dim = 256;
  Index rotary_dim = 64;
  bool gated = true;
  Index num_k_heads = 16;  // linear attention; 0: the model has none
  Index num_v_heads = 16;
  Index k_dim = 128;
  Index v_dim = 128;
  Index conv_kernel = 4;
  Index page_tokens = 832;
};
KernelShapes shapes_of(const io::ModelConfig& config, const std::string& source);

// One weight: out = x W^T.
struct ProductShape {
  Index n = 0;
  Index k = 0;
};
std::vector<ProductShape> product_shapes(const KernelShapes& shapes);  // each once, the largest last

// run(i) works on copy i % num_copies. Not thread-safe.
struct KernelCase {
  std::string op;       // "matmul"
  std::string variant;  // "bf16", "vendor_prefill": what a pair compares
  std::string shape;    // "rows 1, 7168x1024"
  ops::OpWork work;
  Index num_copies = 1;
  bool cold = false;  // all copies together are larger than what was asked for
  std::function<void(Index i)> run;
  std::function<std::vector<uint8_t>()> output;  // of the run before, in host memory; null: not compared
};

// A against B, doing the same. B's bits may differ where `bits_equal` does not say otherwise.
struct KernelPair {
  KernelCase a;
  KernelCase b;
  bool bits_equal = false;
};

// Makes cases one at a time: each may hold hundreds of megabytes. `cold_bytes`: what the copies of a case
// must exceed together. Borrows `ops`.
class KernelCases final {
 public:
  KernelCases(ops::Ops& ops, KernelShapes shapes, size_t cold_bytes)
      : ops_(ops), shapes_(std::move(shapes)), cold_bytes_(cold_bytes) {}

  KernelCase matmul(ProductShape shape, Index rows) const;
  KernelCase rms_norm(Index rows) const;
  KernelCase swiglu(Index rows) const;
  KernelCase embed(Index rows) const;
  KernelCase gather_rows(Index rows) const;
  KernelCase rope_angles(Index rows) const;
  KernelCase qk_rope_write(Index rows) const;
  KernelCase best_column(Index rows) const;
  // One token of each of `rows` sequences, or (kPrompt) one prompt of that many.
  enum class Rows : uint8_t { kDecode, kPrompt };
  KernelCase causal_conv(Index rows, Rows kind) const;
  KernelCase gated_delta(Index rows, Rows kind) const;

  // bf16 against a weight of 4-bit or FP8 codes; fused gate/up and SwiGLU against two operations; the paths
  // of attention: `rows` queries at the end of kv_len tokens.
  KernelPair quantised(ProductShape shape, Index rows, ops::CodeKind kind) const;
  KernelPair gate_up(Index rows) const;
  KernelPair attention(Index rows, Index kv_len) const;

  const KernelShapes& shapes() const { return shapes_; }

 private:
  Buffer here(Buffer host) const { return moved_to(ops_.memory(), std::move(host)); }
  // As many as no cache holds, bf16.
  std::vector<std::unique_ptr<ops::Weight>> random_weights(ProductShape shape) const;
  // How many copies of so many bytes no cache holds.
  Index copies_of(size_t bytes) const;

  ops::Ops& ops_;
  KernelShapes shapes_;
  size_t cold_bytes_;
};

}  // namespace longspan::measure
