// Qwen3.5 / 3.6: full attention with an output gate in some layers, Gated DeltaNet in the others. Tensors,
// names without prefix:
//   embed_tokens.weight [vocab, H]; norm.weight [H]; lm_head.weight [vocab, H] unless tied
//   layers.i.: input_layernorm.weight, post_attention_layernorm.weight [H]; mlp.{gate,up}_proj.weight [I, H];
//   mlp.down_proj.weight [H, I] full attention: self_attn.q_proj.weight [2 Nq D, H], {k,v}_proj.weight [Nkv
//   D, H], o_proj.weight [H, Nq D], {q,k}_norm.weight [D] linear attention: linear_attn.in_proj_qkv.weight
//   [C, H], in_proj_z.weight [Vd, H], in_proj_{b,a}.weight [Hv, H],
//     conv1d.weight [C, 1, K], A_log, dt_bias [Hv], norm.weight [dv], out_proj.weight [H, Vd]
#include "model/model.h"

namespace longspan::model {

Mixer load_hybrid_mixer(const LayerLoader& loader, Index layer_idx) {
  return loader.config.layers[static_cast<size_t>(layer_idx)] == io::LayerKind::kFullAttention
             ? Mixer(load_full_attention(loader, layer_idx))
             : Mixer(load_gated_delta_net(loader, layer_idx));
}

}  // namespace longspan::model
