// Model: a decoder with its weights, and the forward pass of one step. Owns no cache and no schedule.
#pragma once

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "model/layers.h"

namespace longspan::model {

using Mixer = std::variant<FullAttention, GatedDeltaNet>;

struct DecoderLayer {
  Norm input_norm;  // over H
  Mixer mixer;
  Norm post_norm;  // over H
  Mlp mlp;
};

// The weights of a whole decoder. lm_head is null when the embedding serves for both.
struct DecoderWeights {
  std::unique_ptr<ops::Weight> embed;  // [vocab, H]
  std::vector<DecoderLayer> layers;
  Norm final_norm;                       // over H
  std::unique_ptr<ops::Weight> lm_head;  // [vocab, H]

  const ops::Weight& output() const { return lm_head ? *lm_head : *embed; }
};

// Limits of one step; memory for it is taken once.
struct StepLimits {
  Index max_tokens = 0;  // rows
  Index max_logits = 0;  // rows of one logits() call
};

// All linear layers, in the order in which they are loaded.
std::vector<LinearLayer> linear_layers(const io::ModelConfig& config);
Index num_linear_weights(const io::ModelConfig& config);  // their values together

class Model final {
 public:
  // Loads (or draws) every weight for products in `dtype` (float32, bfloat16 or float16). Throws as
  // WeightSource does.
  Model(const io::ModelConfig& config, DType dtype, WeightSource& source, ops::Ops& ops);

  const io::ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  size_t weight_bytes() const { return weight_bytes_; }  // as held in memory

  static size_t workspace_bytes(const io::ModelConfig& config, DType dtype, const StepLimits& limits);
  void reserve(const StepLimits& limits);

  // Runs one step within the reserved limits: writes the caches and returns the final hidden rows of
  // in.logit_rows, T [num_logits, H] after the final norm, valid until the next call.
  TensorView forward(const StepInputs& in, const CacheViews& cache);
  // Logits of hidden rows T [m, H], m <= max_logits: T [m, vocab] in the memory of the operations, valid
  // until the next call.
  TensorView logits(const TensorView& hidden);
  // Of those, valid as long: themselves in host memory, and each row's best token, -1 where a row is not
  // finite (ops::BestColumn).
  TensorView to_host(const TensorView& logits);
  std::span<const int32_t> best_tokens(const TensorView& logits);
  // Drawn ones in their place; rows: ops::Draw's, in the memory of the operations.
  std::span<const int32_t> draw_tokens(const TensorView& logits, const TensorView& rows);
  // The tokens that were chosen last, where the operations find them: i32 [max_logits].
  TensorView chosen_tokens() const { return chosen_.view(); }

 private:
  // x = x + delta where there is a delta, out = norm(x): ops::RmsNorm.
  void add_and_norm(const TensorView& x, const TensorView& delta, const Norm& norm, const TensorView& out);
  std::span<const int32_t> download_chosen(Index num_rows);
  void tap(const StepInputs& in, Index k, const TensorView& hidden);

  io::ModelConfig config_;
  DType dtype_;
  ops::Ops& ops_;
  DecoderWeights weights_;
  size_t weight_bytes_ = 0;
  Buffer inv_freq_;  // f32 [rotary_dim / 2]
  Arena arena_;
  Buffer hidden_;       // T [max_tokens, H]: what forward() returns
  Buffer logits_;       // T [max_logits, vocab]
  Buffer host_logits_;  // the same for the host, where that is not the memory of the operations
  Buffer chosen_;       // i32 [max_logits]
  std::vector<int32_t> host_chosen_;
};

// The mixer of one layer, with its weights. What an architecture brings; all else is common.
using MixerLoader = Mixer (*)(const LayerLoader& loader, Index layer_idx);
MixerLoader mixer_loader(const io::ModelConfig& config);              // registry.cc; throws kUnsupported
Mixer load_hybrid_mixer(const LayerLoader& loader, Index layer_idx);  // hybrid.cc
Mixer load_dense_mixer(const LayerLoader& loader, Index layer_idx);   // dense.cc

}  // namespace longspan::model
