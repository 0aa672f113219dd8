// How one linear layer lies in a checkpoint: found from its tensors' names, dtypes and shapes, held against
// what the config claims. Reads headers only; the model room reads the values.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/quant_config.h"
#include "io/tensor_store.h"

namespace longspan::io {

// MODEL 4.1 to 4.4. W is [N, K]; G groups of K share a scale (and a zero).
enum class LinearForm : uint8_t {
  kDense,   // .weight float [N, K]
  kAwq,     // .qweight i32 [K, N / 8], .qzeros i32 [G, N / 8], .scales [G, N]
  kGptq,    // .qweight i32 [K / 8, N], .qzeros i32 [G, N / 8], .scales [G, N], .g_idx i32 [K] or none
  kPacked,  // compressed-tensors: .weight_packed i32 [N, ceil(K / 8)], .weight_scale [N, G], .weight_shape
            // [2], .weight_zero_point i32 [ceil(N / 8), G] or none, .weight_g_idx i32 [K] or none
  kFp8      // .weight e4m3 [N, K], .weight_scale_inv [ceil(N / rows), ceil(K / columns)], a multiplier
};
std::string_view to_string(LinearForm form);  // "dense", "awq", "gptq", "compressed-tensors", "fp8"

struct LinearLayout {
  LinearForm form = LinearForm::kDense;
  Index out_features = 0;        // N
  Index in_features = 0;         // K
  Index group_size = 0;          // input elements that share a scale
  Index scale_rows = 1;          // output rows that do
  bool has_zeros = false;        // else 8
  Index zero_offset = 0;         // what to add to a stored zero: 1 in the first GPTQ format
  std::string group_index = "";  // tensor with the group of each input element, or ""
  // As many as there are: codes, scales, zeros, shape, group_index.
  std::vector<std::string> tensors;

  Index num_groups() const { return (in_features + group_size - 1) / group_size; }
};

// `module` is "model.layers.0.mlp.down_proj". Throws kUnsupported for a form this build does not read, with
// what was found; kInvalid for shapes or dtypes that contradict each other or the config.
LinearLayout find_linear(const TensorStore& store, const QuantConfig& config, const std::string& module);

// The linear layers of `tensors` (WeightLayout::text) that are not plain floats.
struct QuantSurvey {
  std::map<std::string, LinearLayout> quantised;  // by module
  // Modules the config would have otherwise: the tensors win.
  std::vector<std::string> dense_against_config;
  std::vector<std::string> quantised_against_config;

  // "182 awq (group 128), 3 fp8 (128 x 128)"; "" without any.
  std::string describe() const;
};

// The layers that are quantised where a model is: q_proj, in_proj_qkv, down_proj, ...; not embeddings,
// lm_head or the narrow in_proj_a and in_proj_b.
bool is_projection(std::string_view module);

// Throws as find_linear does, for the first layer it cannot read. A config of a method this build does not
// know, or without a tensor that bears it out, is an error only when such tensors exist.
QuantSurvey survey_quantisation(const TensorStore& store, const QuantConfig& config,
                                const std::vector<std::string>& tensors);

// What the config says of a module: named in modules_to_not_convert, ignore, dynamic or extra_config.
bool left_dense(const QuantConfig& config, const std::string& module);

}  // namespace longspan::io
