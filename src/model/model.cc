#include "model/model.h"

#include <cmath>

namespace longspan::model {
namespace {

size_t packed_bytes(const DecoderLayer& layer) {
  size_t bytes = layer.mlp.gate_up->size_bytes() + layer.mlp.down->size_bytes();
  if (const auto* attention = std::get_if<FullAttention>(&layer.mixer))
    return bytes + attention->qkv->size_bytes() + attention->o->size_bytes();
  const auto& net = std::get<GatedDeltaNet>(layer.mixer);
  return bytes + net.in_proj->size_bytes() + net.out->size_bytes();
}

// theta^(-2j / d), as fp32 (MODEL, reading guide).
Buffer inverse_frequencies(const io::ModelConfig& config) {
  const Index half = config.rotary_dim / 2;
  Buffer buffer(DType::kF32, {half});
  for (Index j = 0; j < half; ++j)
    buffer.view().as<float>()[j] =
        static_cast<float>(1.0 / std::pow(config.rope_theta, 2.0 * static_cast<double>(j) /
                                                                 static_cast<double>(config.rotary_dim)));
  return buffer;
}

LinearLayer embed_layer(const io::ModelConfig& config) {
  return {.parts = {{"embed_tokens.weight", config.vocab_size}}, .in_features = config.hidden_size};
}
LinearLayer lm_head_layer(const io::ModelConfig& config) {
  return {.parts = {{"lm_head.weight", config.vocab_size}}, .in_features = config.hidden_size};
}

DecoderWeights load_decoder(const LayerLoader& loader) {
  const io::ModelConfig& config = loader.config;
  const MixerLoader load_mixer = mixer_loader(config);
  DecoderWeights weights;
  weights.embed = loader.linear(embed_layer(config));
  for (Index i = 0; i < config.num_layers(); ++i) {
    const std::string at = fmt::format("layers.{}.", i);
    weights.layers.push_back(
        {.input_norm = load_norm(loader, at + "input_layernorm.weight", config.hidden_size),
         .mixer = load_mixer(loader, i),
         .post_norm = load_norm(loader, at + "post_attention_layernorm.weight", config.hidden_size),
         .mlp = load_mlp(loader, i)});
  }
  weights.final_norm = load_norm(loader, "norm.weight", config.hidden_size);
  if (!config.tie_word_embeddings) weights.lm_head = loader.linear(lm_head_layer(config));
  return weights;
}

}  // namespace

std::vector<LinearLayer> linear_layers(const io::ModelConfig& config) {
  std::vector<LinearLayer> layers = {embed_layer(config)};
  for (Index i = 0; i < config.num_layers(); ++i) {
    if (config.layers[static_cast<size_t>(i)] == io::LayerKind::kFullAttention) {
      layers.push_back(qkv_layer(config, i));
      layers.push_back(o_layer(config, i));
    } else {
      layers.push_back(in_proj_layer(config, i));
      layers.push_back(out_layer(config, i));
    }
    layers.push_back(gate_up_layer(config, i));
    layers.push_back(down_layer(config, i));
  }
  if (!config.tie_word_embeddings) layers.push_back(lm_head_layer(config));
  return layers;
}

Index num_linear_weights(const io::ModelConfig& config) {
  Index count = 0;
  for (const LinearLayer& layer : linear_layers(config))
    for (const LinearPart& part : layer.parts) count += part.out_features * layer.in_features;
  return count;
}

Model::Model(const io::ModelConfig& config, DType dtype, WeightSource& source, ops::Ops& ops)
    : config_(config),
      dtype_(dtype),
      ops_(ops),
      weights_(load_decoder({config, dtype, source, ops})),
      inv_freq_(moved_to(ops.memory(), inverse_frequencies(config))) {
  weight_bytes_ = weights_.embed->size_bytes() + (weights_.lm_head ? weights_.lm_head->size_bytes() : 0);
  for (const DecoderLayer& layer : weights_.layers) weight_bytes_ += packed_bytes(layer);
}

namespace {

// Of x, to which every block adds. Models trained in bfloat16 may let it grow beyond 65504, where float16
// ends; what one block adds stays far below.
DType residual_dtype(DType dtype) { return dtype == DType::kF16 ? DType::kF32 : dtype; }

// What forward() takes from the arena: x, its norm, a block's output; the last rows of x; what a block takes.
size_t arena_bytes(const io::ModelConfig& config, DType dtype, Index max_tokens) {
  const Shape shape = {max_tokens, config.hidden_size};
  const size_t rows = Arena::bytes_for(dtype, shape);
  const size_t residual = Arena::bytes_for(residual_dtype(dtype), shape);
  const size_t angles = Arena::bytes_for(DType::kF32, {max_tokens, config.rotary_dim});
  return 2 * residual + 2 * rows + angles + activation_bytes(config, max_tokens, dtype);
}

}  // namespace

size_t Model::workspace_bytes(const io::ModelConfig& config, DType dtype, const StepLimits& limits) {
  return arena_bytes(config, dtype, limits.max_tokens) +
         Arena::bytes_for(dtype, {limits.max_tokens, config.hidden_size}) +
         Arena::bytes_for(dtype, {limits.max_logits, config.vocab_size});
}

void Model::reserve(const StepLimits& limits) {
  Memory& memory = ops_.memory();
  const auto arena_size = static_cast<Index>(arena_bytes(config_, dtype_, limits.max_tokens));
  arena_ = Arena(memory.allocate(DType::kU8, {arena_size}));
  hidden_ = memory.allocate(dtype_, {limits.max_tokens, config_.hidden_size});
  logits_ = memory.allocate(dtype_, {limits.max_logits, config_.vocab_size});
  if (!memory.is_host()) host_logits_ = Buffer(dtype_, {limits.max_logits, config_.vocab_size});
  chosen_ = memory.allocate(DType::kI32, {limits.max_logits});
  host_chosen_.resize(static_cast<size_t>(limits.max_logits));
}

TensorView Model::forward(const StepInputs& in, const CacheViews& cache) {
  Arena::Scope scope(arena_);
  const Index num_tokens = in.num_tokens();
  const Index num_logits = in.logit_rows.dim(0);
  const TensorView x = arena_.take(residual_dtype(dtype_), {num_tokens, config_.hidden_size});
  const TensorView normed = arena_.take(dtype_, {num_tokens, config_.hidden_size});
  const TensorView delta = arena_.take(dtype_, {num_tokens, config_.hidden_size});
  Forward f{ops_, in, arena_, arena_.take(DType::kF32, {num_tokens, config_.rotary_dim}), dtype_};

  ops_.rope_angles({.positions = in.positions, .inv_freq = inv_freq_.view(), .cos_sin = f.cos_sin});
  ops_.embed({.ids = in.token_ids, .table = weights_.embed.get(), .out = x});

  // x = x + mixer(norm(x)); x = x + mlp(norm(x)). A block's output waits in delta until the next norm adds
  // it.
  TensorView added;
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const DecoderLayer& layer = weights_.layers[i];
    const bool last = i + 1 == weights_.layers.size();
    ops_.begin_layer(static_cast<Index>(i));
    add_and_norm(x, added, layer.input_norm, normed);
    if (in.layer_tap) tap(in, static_cast<Index>(i), x);
    f.logits_only = last && num_logits < num_tokens;
    added = f.logits_only ? delta.rows(0, num_logits) : delta;
    std::visit([&](const auto& mixer) { model::forward(mixer, cache.layers[i], f, normed, added); },
               layer.mixer);
    if (last) break;
    add_and_norm(x, added, layer.post_norm, normed);
    model::forward(layer.mlp, f, normed, added);
  }

  // What follows the last cache is needed of few rows of a prompt, and of most chunks of a long one not at
  // all.
  const TensorView hidden = hidden_.view().rows(0, num_logits);
  if (num_logits > 0) {
    TensorView last_x = x;
    if (f.logits_only) {
      last_x = arena_.take(x.dtype, hidden.shape);
      ops_.gather_rows({.x = x, .rows = in.logit_rows, .out = last_x});
    }
    const DecoderLayer& layer = weights_.layers.back();
    const TensorView last_normed = normed.rows(0, num_logits);
    add_and_norm(last_x, added, layer.post_norm, last_normed);
    model::forward(layer.mlp, f, last_normed, added);
    ops_.begin_layer(-1);
    add_and_norm(last_x, added, weights_.final_norm, hidden);
    if (in.layer_tap && !f.logits_only) tap(in, config_.num_layers(), hidden);
  }
  ops_.begin_layer(-1);
  return hidden;
}

void Model::add_and_norm(const TensorView& x, const TensorView& delta, const Norm& norm,
                         const TensorView& out) {
  ops_.rms_norm(
      {.x = x, .delta = delta, .weight = norm.weight.view(), .kind = norm.kind, .eps = norm.eps, .out = out});
}

void Model::tap(const StepInputs& in, Index k, const TensorView& hidden) {
  if (ops_.memory().is_host()) return in.layer_tap(k, hidden);
  const Buffer copy(hidden.dtype, hidden.shape);
  ops_.memory().download(copy.data(), hidden.data, hidden.size_bytes());
  in.layer_tap(k, copy.view());
}

TensorView Model::logits(const TensorView& hidden) {
  const TensorView out = logits_.view().rows(0, hidden.dim(0));
  // Sampled rows of prompts and of decoding sequences alike: one order of sums for both.
  ops_.matmul({.x = hidden, .num_decode_rows = hidden.dim(0), .weight = &weights_.output(), .out = out});
  return out;
}

TensorView Model::to_host(const TensorView& logits) {
  if (ops_.memory().is_host()) return logits;
  const TensorView host = host_logits_.view().rows(0, logits.dim(0));
  ops_.memory().download(host.data, logits.data, logits.size_bytes());
  return host;
}

std::span<const int32_t> Model::best_tokens(const TensorView& logits) {
  ops_.best_column({.x = logits, .out = chosen_.view().rows(0, logits.dim(0))});
  return download_chosen(logits.dim(0));
}

std::span<const int32_t> Model::draw_tokens(const TensorView& logits, const TensorView& rows) {
  ops_.draw({.x = logits, .rows = rows, .out = chosen_.view().rows(0, logits.dim(0))});
  return download_chosen(logits.dim(0));
}

std::span<const int32_t> Model::download_chosen(Index num_rows) {
  ops_.memory().download(host_chosen_.data(), chosen_.data(), chosen_.view().rows(0, num_rows).size_bytes());
  return {host_chosen_.data(), static_cast<size_t>(num_rows)};
}

}  // namespace longspan::model
