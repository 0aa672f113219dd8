// The dense relatives: full attention in every layer, rotary over the whole head, plain norm weights, no
// output gate. Tensors as in hybrid.cc, but self_attn.q_proj.weight [Nq D, H]; Qwen3 has q_norm and k_norm
// [D] and no bias, Qwen2 has q, k and v biases and no head norms.
#include "model/model.h"

namespace longspan::model {

Mixer load_dense_mixer(const LayerLoader& loader, Index layer_idx) {
  return load_full_attention(loader, layer_idx);
}

}  // namespace longspan::model
