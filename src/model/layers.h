// The building blocks of a decoder layer: weights with their shapes, and one forward function each.
// Paper letters: H hidden, I mlp width, Nq/Nkv query and KV heads of size D, Hk/Hv linear-attention key and
// value heads of size dk/dv.
#pragma once

#include "core/arena.h"
#include "core/buffer.h"
#include "io/model_config.h"
#include "model/step.h"
#include "model/weight_source.h"

namespace longspan::model {

struct Norm {
  Buffer weight;  // f32 [n], as stored
  ops::NormKind kind = ops::NormKind::kZeroCentered;
  float eps = 1e-6f;
};

struct Mlp {
  std::unique_ptr<ops::Weight> gate_up;  // [2 I, H]: gate rows, then up rows
  std::unique_ptr<ops::Weight> down;     // [H, I]
};

struct FullAttention {
  Index num_q_heads = 0;
  Index num_kv_heads = 0;
  Index head_dim = 0;
  bool gated = false;                // q rows are [Nq, 2, D]: each head's query, then its gate
  std::unique_ptr<ops::Weight> qkv;  // [Nq D (2 Nq D when gated) + 2 Nkv D, H]
  Buffer qkv_bias;                   // f32, as many as rows of qkv; empty without bias
  Norm q_norm;                       // over D; weight empty without
  Norm k_norm;
  Buffer kv_scales;                // f32 [2, Nkv], of an FP8 cache: of K, then of V
  std::unique_ptr<ops::Weight> o;  // [H, Nq D]

  Index q_rows() const { return num_q_heads * head_dim * (gated ? 2 : 1); }
  Index kv_rows() const { return num_kv_heads * head_dim; }
};

struct GatedDeltaNet {
  Index num_k_heads = 0;
  Index num_v_heads = 0;
  Index k_dim = 0;
  Index v_dim = 0;
  std::unique_ptr<ops::Weight> in_proj;  // [C + Vd + 2 Hv, H]: q, k, v, then z, b, a
  Buffer conv;                           // f32 [C, K]
  Buffer a_log;                          // f32 [Hv]
  Buffer dt_bias;                        // f32 [Hv]
  Buffer norm;                           // f32 [dv]: of the gated norm, plain
  float norm_eps = 1e-6f;
  std::unique_ptr<ops::Weight> out;  // [H, Vd]

  Index key_width() const { return num_k_heads * k_dim; }                  // Kd
  Index value_width() const { return num_v_heads * v_dim; }                // Vd
  Index conv_channels() const { return 2 * key_width() + value_width(); }  // C
};

// What the blocks of one forward pass share.
struct Forward {
  ops::Ops& ops;
  const StepInputs& in;
  Arena& arena;
  TensorView cos_sin;  // f32 [num_tokens, rotary_dim]
  DType dtype;         // T
  // Of the block's output only in.logit_rows are read: out has these rows alone.
  bool logits_only = false;

  Index num_decode_rows() const { return in.seqs.num_decode_seqs; }  // the first rows, one a sequence
  Index num_decode_outputs() const { return logits_only ? in.num_decode_logits : num_decode_rows(); }
};

// out T [num_rows, H] <- mlp(x T [num_rows, H]); x is the normed input, the residual is the caller's.
void forward(const Mlp& mlp, Forward& f, const TensorView& x, const TensorView& out);
// out T [num_tokens or num_logits, H] <- mixer(x T [num_tokens, H]), likewise; writes the cache of all
// tokens.
void forward(const FullAttention& layer, const LayerCache& cache, Forward& f, const TensorView& x,
             const TensorView& out);
void forward(const GatedDeltaNet& layer, const LayerCache& cache, Forward& f, const TensorView& x,
             const TensorView& out);

// Arena bytes that the forward functions take for num_tokens rows of T.
size_t activation_bytes(const io::ModelConfig& config, Index num_tokens, DType dtype);

// The weights of linear layers, in the order in which they are loaded; in_proj is [qkv, z, b, a].
LinearLayer qkv_layer(const io::ModelConfig& config, Index layer_idx);
LinearLayer o_layer(const io::ModelConfig& config, Index layer_idx);
LinearLayer in_proj_layer(const io::ModelConfig& config, Index layer_idx);
LinearLayer out_layer(const io::ModelConfig& config, Index layer_idx);
LinearLayer gate_up_layer(const io::ModelConfig& config, Index layer_idx);
LinearLayer down_layer(const io::ModelConfig& config, Index layer_idx);

// What loading a layer needs.
struct LayerLoader {
  const io::ModelConfig& config;
  DType dtype;  // T
  WeightSource& source;
  ops::Ops& ops;

  std::unique_ptr<ops::Weight> linear(const LinearLayer& layer) const {
    return source.linear(ops, layer, dtype);
  }
  // A small tensor in the memory of the operations.
  Buffer f32(const std::string& name, Shape shape, Init init) const {
    return moved_to(ops.memory(), source.f32(name, shape, init));
  }
};

Norm load_norm(const LayerLoader& loader, const std::string& name, Index size);
Mlp load_mlp(const LayerLoader& loader, Index layer_idx);
FullAttention load_full_attention(const LayerLoader& loader, Index layer_idx);
GatedDeltaNet load_gated_delta_net(const LayerLoader& loader, Index layer_idx);

}  // namespace longspan::model
