// Where the tensors of the language model are in a checkpoint, and which convention they follow. Read from
// the tensors themselves: names and shapes are the truth, config.json is not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "io/model_config.h"
#include "io/tensor_store.h"

namespace longspan::io {

struct WeightLayout {
  std::string prefix;   // "model.language_model.", "model." or MLX "language_model.model."
  std::string lm_head;  // module of the output projection, "lm_head" or "language_model.lm_head"
  // False, the published form: conv1d is [C, 1, K] and norms apply 1 + w. True, MLX conversions: conv1d is
  // [C, K, 1] and the norms hold 1 + w already (linear_attn.norm is plain in both). In memory both conv1d are
  // the same [C, K].
  bool norms_shifted = false;
  std::vector<std::string> text;  // names of the language model's tensors, sorted
  size_t num_visual = 0;          // tensors left out: vision tower
  size_t num_mtp = 0;             // tensors left out: multi-token prediction
  // Entries of A_log that bfloat16 cannot hold. Zero: loading A_log in bfloat16, as some engines do, is
  // exact.
  size_t num_a_log_beyond_bf16 = 0;
};

enum class WeightFamily { kText, kVisual, kMtp };
WeightFamily weight_family(std::string_view tensor_name);

// Throws kInvalid when no prefix fits, or when the conv1d shapes contradict each other or the config;
// kNotFound when a linear attention layer has no conv1d. Other tensors are not looked at: the model checks
// what it uses.
WeightLayout detect_weight_layout(const TensorStore& store, const ModelConfig& config);

}  // namespace longspan::io
