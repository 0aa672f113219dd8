#include "io/weight_layout.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.h"

namespace longspan::io {
namespace {

struct Place {
  std::string_view prefix;
  std::string_view lm_head;
};

constexpr Place kPlaces[] = {
    {"model.language_model.", "lm_head"},                 // multimodal exports
    {"language_model.model.", "language_model.lm_head"},  // MLX conversions
    {"model.", "lm_head"},                                // text-only exports
};

Place find_place(const TensorStore& store) {
  for (const Place& place : kPlaces)
    if (store.contains(fmt::format("{}embed_tokens.weight", place.prefix))) return place;
  std::string tried;
  for (const Place& place : kPlaces)
    tried += fmt::format("{}{}embed_tokens.weight", tried.empty() ? "" : ", ", place.prefix);
  fail(ErrorKind::kInvalid, "the checkpoint has no embedding: got {} other tensors, need one of {}",
       store.size(), tried);
}

// True for [C, K, 1], false for [C, 1, K].
bool has_taps_before_one(const TensorInfo& conv, const ModelConfig& config) {
  const std::vector<Index> published = {config.conv_channels(), 1, config.linear_conv_kernel};
  const std::vector<Index> mlx = {config.conv_channels(), config.linear_conv_kernel, 1};
  if (conv.dims == published) return false;
  if (conv.dims == mlx) return true;
  fail(ErrorKind::kInvalid, "{}: got shape [{}], need [{}] or, converted by MLX, [{}]", conv.name,
       fmt::join(conv.dims, ", "), fmt::join(published, ", "), fmt::join(mlx, ", "));
}

size_t count_beyond_bf16(const TensorView& view) {
  if (view.dtype != DType::kF32) return 0;
  const std::span values(view.as<float>(), static_cast<size_t>(view.num_elements()));
  return static_cast<size_t>(
      std::count_if(values.begin(), values.end(), [](float x) { return static_cast<float>(bf16(x)) != x; }));
}

}  // namespace

WeightFamily weight_family(std::string_view name) {
  for (std::string_view prefix : {"mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."})
    if (name.starts_with(prefix)) return WeightFamily::kMtp;
  for (std::string_view prefix : {"model.visual.", "visual.", "vision_tower.", "model.vision_tower."})
    if (name.starts_with(prefix)) return WeightFamily::kVisual;
  return WeightFamily::kText;
}

WeightLayout detect_weight_layout(const TensorStore& store, const ModelConfig& config) {
  const Place place = find_place(store);
  WeightLayout layout{.prefix = std::string(place.prefix), .lm_head = std::string(place.lm_head)};
  for (std::string& name : store.names()) {
    switch (weight_family(name)) {
      case WeightFamily::kVisual:
        ++layout.num_visual;
        break;
      case WeightFamily::kMtp:
        ++layout.num_mtp;
        break;
      case WeightFamily::kText:
        layout.text.push_back(std::move(name));
        break;
    }
  }
  const TensorInfo* first = nullptr;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    if (config.layers[static_cast<size_t>(layer)] != LayerKind::kLinearAttention) continue;
    const std::string module = fmt::format("{}layers.{}.linear_attn.", layout.prefix, layer);
    if (const TensorInfo* a_log = store.find(module + "A_log"))
      layout.num_a_log_beyond_bf16 += count_beyond_bf16(store.view(a_log->name));
    const TensorInfo& conv = store.info(module + "conv1d.weight");
    const bool is_mlx = has_taps_before_one(conv, config);
    if (first && is_mlx != layout.norms_shifted)
      fail(ErrorKind::kInvalid,
           "{} and {} follow different conventions: got [{}] and [{}], need one of the two", first->name,
           conv.name, fmt::join(first->dims, ", "), fmt::join(conv.dims, ", "));
    if (!first) first = &conv;
    layout.norms_shifted = is_mlx;
  }
  return layout;
}

}  // namespace longspan::io
