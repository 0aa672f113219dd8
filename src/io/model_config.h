// config.json of the supported families, checked and with every default filled in. The only place that knows
// where re-exports hide their fields; everybody else reads ModelConfig.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "io/quant_config.h"

namespace longspan::io {

enum class Architecture : uint8_t {
  kQwen3_5,  // hybrid: full attention + Gated DeltaNet (Qwen3.5, 3.6)
  kQwen3,    // dense, q/k norm
  kQwen2,    // dense, q/k/v bias
};

enum class LayerKind : uint8_t { kFullAttention, kLinearAttention };

enum class NormKind : uint8_t {
  kZeroCentered,  // rnd(x_hat * (1 + w)), one rounding
  kPlain,         // rnd(w * rnd(x_hat))
};

std::string_view to_string(Architecture architecture);  // "qwen3_5", "qwen3", "qwen2"
std::string_view to_string(LayerKind kind);             // "full_attention", "linear_attention"

// Symbols in brackets are those of docs and model/. All counts are of elements or heads, never bytes.
struct ModelConfig {
  Architecture architecture = Architecture::kQwen3_5;
  std::string architecture_name;  // as written: "Qwen3_5ForConditionalGeneration"
  DType dtype = DType::kBF16;     // of the checkpoint: bfloat16, float16 or float32

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;              // [H]
  int64_t intermediate_size = 0;        // [I] MLP width
  int64_t max_position_embeddings = 0;  // tokens
  float rms_norm_eps = 1e-6f;
  bool tie_word_embeddings = false;  // true: logits use embed_tokens, there is no lm_head
  std::vector<LayerKind> layers;     // [num_layers], first to last

  // Full attention.
  int64_t num_q_heads = 0;                  // [Nq]
  int64_t num_kv_heads = 0;                 // [Nkv]; query head n reads kv head n / (Nq / Nkv)
  int64_t head_dim = 0;                     // [D]; Nq * D need not be H
  NormKind norm = NormKind::kZeroCentered;  // of every RMSNorm but the gated one of linear attention
  bool qkv_bias = false;                    // q, k, v projections have a bias; o never
  bool qk_norm = true;                      // RMSNorm over head_dim on q and k, before RoPE
  bool attn_output_gate =
      true;  // q_proj is [Nq, 2, D]: query and gate of each head; output times sigmoid(gate)

  // RoPE: pairs (j, j + rotary_dim / 2), angle = position * rope_theta^(-2j / rotary_dim).
  double rope_theta = 0;
  int64_t rotary_dim = 0;  // [d_r] leading dims of a head that turn; even
  std::array<int64_t, 3> mrope_section = {
      11, 11, 10};  // frequencies of axis T, H, W; no effect on text, where T = H = W

  // Linear attention (Gated DeltaNet); zero in dense models.
  int64_t linear_num_key_heads = 0;    // [Hk]
  int64_t linear_num_value_heads = 0;  // [Hv]; value head h reads key head h / (Hv / Hk)
  int64_t linear_key_head_dim = 0;     // [dk]
  int64_t linear_value_head_dim = 0;   // [dv]
  int64_t linear_conv_kernel = 0;      // [K] taps, 2 to 8

  std::vector<int32_t>
      eos_ids;  // of config.json alone: often not the one a chat ends with; see stop_token_ids()
  QuantConfig quantization;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  int64_t num_layers_of(LayerKind kind) const;
  bool is_hybrid() const { return architecture == Architecture::kQwen3_5; }
  int64_t q_width() const { return num_q_heads * head_dim; }                                     // [Nq * D]
  int64_t kv_width() const { return num_kv_heads * head_dim; }                                   // [Nkv * D]
  int64_t linear_key_width() const { return linear_num_key_heads * linear_key_head_dim; }        // [Kd]
  int64_t linear_value_width() const { return linear_num_value_heads * linear_value_head_dim; }  // [Vd]
  int64_t conv_channels() const { return 2 * linear_key_width() + linear_value_width(); }  // [C]: q, k, v
};

// Reads DIR/config.json (or the file itself), with quantize_config.json or quantization_config.json beside it
// where config.json has no quantization_config. Throws kNotFound, kInvalid (malformed, contradictory) or
// kUnsupported (another architecture, mixture of experts, sliding window, scaled RoPE, another activation:
// refused by name).
ModelConfig load_model_config(const std::filesystem::path& directory_or_file);

// The same from the text of a config.json; `file` is for messages. Pure.
ModelConfig parse_model_config(std::string_view content, std::string_view file = "config.json");

}  // namespace longspan::io
