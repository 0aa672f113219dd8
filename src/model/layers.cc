#include "model/layers.h"

#include <algorithm>
#include <cmath>

namespace longspan::model {

void forward(const Mlp& mlp, Forward& f, const TensorView& x, const TensorView& out) {
  Arena::Scope scope(f.arena);
  const Index num_rows = x.dim(0);
  const Index width = mlp.down->in_features;
  const TensorView gate_up = f.arena.take(f.dtype, {num_rows, 2 * width});
  const TensorView hidden = f.arena.take(f.dtype, {num_rows, width});
  f.ops.matmul_swiglu({.x = x,
                       .num_decode_rows = f.num_decode_outputs(),
                       .weight = mlp.gate_up.get(),
                       .gate_up = gate_up,
                       .out = hidden});
  f.ops.matmul(
      {.x = hidden, .num_decode_rows = f.num_decode_outputs(), .weight = mlp.down.get(), .out = out});
}

// The product at a mixer's end, of the rows of y T [num_tokens, n] that are read.
static void project(const ops::Weight& weight, Forward& f, const TensorView& y, const TensorView& out) {
  if (out.dim(0) == 0) return;
  TensorView rows = y;
  if (f.logits_only) {
    rows = f.arena.take(f.dtype, {out.dim(0), y.dim(1)});
    f.ops.gather_rows({.x = y, .rows = f.in.logit_rows, .out = rows});
  }
  f.ops.matmul({.x = rows, .num_decode_rows = f.num_decode_outputs(), .weight = &weight, .out = out});
}

void forward(const FullAttention& layer, const LayerCache& cache, Forward& f, const TensorView& x,
             const TensorView& out) {
  Arena::Scope scope(f.arena);
  const Index num_tokens = x.dim(0);
  const Index d = layer.head_dim;
  const GroupInputs& tables = f.in.groups[static_cast<size_t>(cache.group)];

  // Projections: one product, read as views. A gated head is [query D | gate D].
  const TensorView qkv = f.arena.take(f.dtype, {num_tokens, layer.q_rows() + 2 * layer.kv_rows()});
  f.ops.matmul({.x = x,
                .num_decode_rows = f.num_decode_rows(),
                .weight = layer.qkv.get(),
                .bias = layer.qkv_bias.data() ? layer.qkv_bias.view() : TensorView(),
                .out = qkv});
  const TensorView q_gate =
      qkv.cols(0, layer.q_rows()).split_last(layer.num_q_heads, layer.gated ? 2 * d : d);
  const TensorView q = q_gate.cols(0, d);
  const TensorView gate = layer.gated ? q_gate.cols(d, d) : TensorView();
  const TensorView k = qkv.cols(layer.q_rows(), layer.kv_rows()).split_last(layer.num_kv_heads, d);
  const TensorView v =
      qkv.cols(layer.q_rows() + layer.kv_rows(), layer.kv_rows()).split_last(layer.num_kv_heads, d);

  // Head norms, rotation, and k, v into the cache.
  ops::KvCache kv = cache.kv;
  if (kv.dtype == DType::kF8E4M3) kv.scales = layer.kv_scales.view();
  f.ops.qk_rope_write({.q = q,
                       .k = k,
                       .v = v,
                       .q_norm = layer.q_norm.weight.data() ? layer.q_norm.weight.view() : TensorView(),
                       .k_norm = layer.k_norm.weight.data() ? layer.k_norm.weight.view() : TensorView(),
                       .norm_kind = layer.q_norm.kind,
                       .eps = layer.q_norm.eps,
                       .cos_sin = f.cos_sin,
                       .slots = tables.slots,
                       .kv = kv,
                       .q_out = q});
  if (out.dim(0) == 0) return;

  // Softmax attention over the cache, times the output gate.
  const TensorView heads = f.arena.take(f.dtype, {num_tokens, layer.num_q_heads * d});
  for (const StepInputs::AttentionRun& run : f.in.attention_runs)
    f.ops.attention({.q = q,
                     .gate = gate,
                     .block_table = tables.block_table,
                     .kv = kv,
                     .seqs = f.in.seqs,
                     .first_seq = run.first_seq,
                     .num_seqs = run.num_seqs,
                     .scale = 1.0f / std::sqrt(static_cast<float>(d)),
                     .path = run.path,
                     .out = heads.split_last(layer.num_q_heads, d)});
  project(*layer.o, f, heads, out);
}

void forward(const GatedDeltaNet& layer, const LayerCache& cache, Forward& f, const TensorView& x,
             const TensorView& out) {
  Arena::Scope scope(f.arena);
  const Index num_tokens = x.dim(0);
  const Index channels = layer.conv_channels();
  const Index kd = layer.key_width();
  const Index vd = layer.value_width();
  const GroupInputs& tables = f.in.groups[static_cast<size_t>(cache.group)];

  // Projections: q, k, v, output gate z, and per head b (write strength) and a (decay).
  const TensorView proj = f.arena.take(f.dtype, {num_tokens, channels + vd + 2 * layer.num_v_heads});
  f.ops.matmul({.x = x, .num_decode_rows = f.num_decode_rows(), .weight = layer.in_proj.get(), .out = proj});
  const TensorView z = proj.cols(channels, vd).split_last(layer.num_v_heads, layer.v_dim);
  const TensorView b = proj.cols(channels + vd, layer.num_v_heads);
  const TensorView a = proj.cols(channels + vd + layer.num_v_heads, layer.num_v_heads);

  // Short causal convolution with SiLU over q, k and v.
  const TensorView qkv = f.arena.take(f.dtype, {num_tokens, channels});
  f.ops.causal_conv({.x = proj.cols(0, channels),
                     .weight = layer.conv.view(),
                     .state = cache.state,
                     .state_pages = tables.state_pages,
                     .seqs = f.in.seqs,
                     .checkpoints = tables.checkpoints,
                     .out = qkv});

  // The gated delta rule, its norm and its gate.
  const TensorView y = f.arena.take(f.dtype, {num_tokens, vd});
  f.ops.gated_delta({.q = qkv.cols(0, kd).split_last(layer.num_k_heads, layer.k_dim),
                     .k = qkv.cols(kd, kd).split_last(layer.num_k_heads, layer.k_dim),
                     .v = qkv.cols(2 * kd, vd).split_last(layer.num_v_heads, layer.v_dim),
                     .z = z,
                     .a = a,
                     .b = b,
                     .a_log = layer.a_log.view(),
                     .dt_bias = layer.dt_bias.view(),
                     .norm = layer.norm.view(),
                     .eps = layer.norm_eps,
                     .state = cache.state,
                     .state_pages = tables.state_pages,
                     .seqs = f.in.seqs,
                     .checkpoints = tables.checkpoints,
                     .out = y.split_last(layer.num_v_heads, layer.v_dim)});
  project(*layer.out, f, y, out);
}

size_t activation_bytes(const io::ModelConfig& config, Index num_tokens, DType dtype) {
  const auto tensor = [&](Index width) { return Arena::bytes_for(dtype, {num_tokens, width}); };
  const Index q_rows = config.q_width() * (config.attn_output_gate ? 2 : 1);
  const size_t mlp = tensor(2 * config.intermediate_size) + tensor(config.intermediate_size);
  const size_t attention = tensor(q_rows + 2 * config.kv_width()) + 2 * tensor(config.q_width());
  const Index channels = config.conv_channels();
  const Index vd = config.linear_value_width();
  const size_t delta = config.is_hybrid() ? tensor(channels + vd + 2 * config.linear_num_value_heads) +
                                                tensor(channels) + 2 * tensor(vd)
                                          : 0;
  return std::max({mlp, attention, delta});
}

Norm load_norm(const LayerLoader& loader, const std::string& name, Index size) {
  const bool zero_centered = loader.config.norm == io::NormKind::kZeroCentered;
  return {.weight = loader.f32(name, {size}, zero_centered ? Init::kNorm : Init::kPlainNorm),
          .kind = zero_centered ? ops::NormKind::kZeroCentered : ops::NormKind::kRoundThenScale,
          .eps = loader.config.rms_norm_eps};
}

namespace {

std::string attention_at(Index layer_idx) { return fmt::format("layers.{}.self_attn.", layer_idx); }
std::string delta_at(Index layer_idx) { return fmt::format("layers.{}.linear_attn.", layer_idx); }
std::string mlp_at(Index layer_idx) { return fmt::format("layers.{}.mlp.", layer_idx); }

}  // namespace

LinearLayer qkv_layer(const io::ModelConfig& config, Index layer_idx) {
  const std::string at = attention_at(layer_idx);
  return {.parts = {{at + "q_proj.weight", config.q_width() * (config.attn_output_gate ? 2 : 1)},
                    {at + "k_proj.weight", config.kv_width()},
                    {at + "v_proj.weight", config.kv_width()}},
          .in_features = config.hidden_size};
}

LinearLayer o_layer(const io::ModelConfig& config, Index layer_idx) {
  return {.parts = {{attention_at(layer_idx) + "o_proj.weight", config.hidden_size}},
          .in_features = config.q_width()};
}

LinearLayer in_proj_layer(const io::ModelConfig& config, Index layer_idx) {
  const std::string at = delta_at(layer_idx);
  return {.parts = {{at + "in_proj_qkv.weight", config.conv_channels()},
                    {at + "in_proj_z.weight", config.linear_value_width()},
                    {at + "in_proj_b.weight", config.linear_num_value_heads},
                    {at + "in_proj_a.weight", config.linear_num_value_heads}},
          .in_features = config.hidden_size};
}

LinearLayer out_layer(const io::ModelConfig& config, Index layer_idx) {
  return {.parts = {{delta_at(layer_idx) + "out_proj.weight", config.hidden_size}},
          .in_features = config.linear_value_width()};
}

LinearLayer gate_up_layer(const io::ModelConfig& config, Index layer_idx) {
  const std::string at = mlp_at(layer_idx);
  return {.parts = {{at + "gate_proj.weight", config.intermediate_size},
                    {at + "up_proj.weight", config.intermediate_size}},
          .in_features = config.hidden_size,
          .packing = ops::Packing::kGateUp};
}

LinearLayer down_layer(const io::ModelConfig& config, Index layer_idx) {
  return {.parts = {{mlp_at(layer_idx) + "down_proj.weight", config.hidden_size}},
          .in_features = config.intermediate_size};
}

Mlp load_mlp(const LayerLoader& loader, Index layer_idx) {
  return {.gate_up = loader.linear(gate_up_layer(loader.config, layer_idx)),
          .down = loader.linear(down_layer(loader.config, layer_idx))};
}

FullAttention load_full_attention(const LayerLoader& loader, Index layer_idx) {
  const io::ModelConfig& config = loader.config;
  FullAttention attention{.num_q_heads = config.num_q_heads,
                          .num_kv_heads = config.num_kv_heads,
                          .head_dim = config.head_dim,
                          .gated = config.attn_output_gate};
  const std::string at = attention_at(layer_idx);
  const LinearLayer qkv = qkv_layer(config, layer_idx);
  attention.qkv = loader.linear(qkv);
  if (config.qkv_bias) attention.qkv_bias = moved_to(loader.ops.memory(), loader.source.bias(qkv.parts));
  if (config.qk_norm) {
    attention.q_norm = load_norm(loader, at + "q_norm.weight", config.head_dim);
    attention.k_norm = load_norm(loader, at + "k_norm.weight", config.head_dim);
  }
  attention.kv_scales = moved_to(loader.ops.memory(), loader.source.kv_scales(at, config.num_kv_heads));
  attention.o = loader.linear(o_layer(config, layer_idx));
  return attention;
}

GatedDeltaNet load_gated_delta_net(const LayerLoader& loader, Index layer_idx) {
  const io::ModelConfig& config = loader.config;
  GatedDeltaNet net{.num_k_heads = config.linear_num_key_heads,
                    .num_v_heads = config.linear_num_value_heads,
                    .k_dim = config.linear_key_head_dim,
                    .v_dim = config.linear_value_head_dim};
  const std::string at = delta_at(layer_idx);
  net.in_proj = loader.linear(in_proj_layer(config, layer_idx));
  net.conv = loader.f32(at + "conv1d.weight", {net.conv_channels(), config.linear_conv_kernel}, Init::kConv);
  net.a_log = loader.f32(at + "A_log", {net.num_v_heads}, Init::kALog);
  net.dt_bias = loader.f32(at + "dt_bias", {net.num_v_heads}, Init::kDtBias);
  net.norm = loader.f32(at + "norm.weight", {net.v_dim}, Init::kPlainNorm);
  net.norm_eps = config.rms_norm_eps;
  net.out = loader.linear(out_layer(config, layer_idx));
  return net;
}

}  // namespace longspan::model
