// A model directory in GPTQ form with the groups in the order of activations (desc_act), made of a float one
// by rounding to nearest, and its twin: the same values as float32.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/packed_layer.h"

namespace longspan::testing {

class GptqTwins {
 public:
  GptqTwins(const std::filesystem::path& model, Index group_size)
      : root_(std::filesystem::temp_directory_path() / ("longspan_gptq_" + std::to_string(::getpid()))) {
    const io::TensorStore store(model);
    for (const std::string& name : store.names()) add(store, name, group_size);
    nlohmann::json config = nlohmann::json::parse(std::ifstream(model / "config.json"));
    write(dense(), dense_, config);
    config["quantization_config"] = {{"quant_method", "gptq"},   {"bits", 4},
                                     {"group_size", group_size}, {"sym", false},
                                     {"desc_act", true},         {"checkpoint_format", "gptq"}};
    write(packed(), packed_, config);
  }
  ~GptqTwins() { std::filesystem::remove_all(root_); }
  GptqTwins(const GptqTwins&) = delete;
  GptqTwins& operator=(const GptqTwins&) = delete;

  std::filesystem::path packed() const { return root_ / "packed"; }
  std::filesystem::path dense() const { return root_ / "dense"; }
  Index num_layers() const { return std::ssize(layers_); }  // that were quantised

 private:
  void add(const io::TensorStore& store, const std::string& name, Index group_size) {
    constexpr std::string_view kSuffix = ".weight";
    const TensorView view = store.view(name);
    const std::string module = name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : "";
    if (!io::is_projection(module)) {
      const Buffer& copy = copies_.emplace_back(view.dtype, view.shape);  // the store goes
      std::memcpy(copy.data(), view.data, view.size_bytes());
      packed_.push_back({name, copy.view()});
      dense_.push_back({name, copy.view()});
      return;
    }
    const Index n = view.dim(0), k = view.dim(1);
    std::vector<float> weights(static_cast<size_t>(n * k));
    for (Index i = 0; i < n * k; ++i) weights[static_cast<size_t>(i)] = ops::value_of(view, i);
    model::PackedLayer& layer = layers_.emplace_back(n, k, group_size);
    layer.permute_groups();
    layer.fit(weights);
    layer.add_gptq(module, /*zero_offset=*/1, /*with_index=*/true);
    for (const auto& [tensor, buffer] : layer.tensors()) packed_.push_back({tensor, buffer.view()});
    Buffer& values = copies_.emplace_back(DType::kF32, Shape{n, k});
    for (Index i = 0; i < n * k; ++i) values.view().as<float>()[i] = layer.value(i / k, i % k);
    dense_.push_back({name, values.view()});
  }

  static void write(const std::filesystem::path& to, const std::vector<io::NamedTensor>& tensors,
                    const nlohmann::json& config) {
    std::filesystem::create_directories(to);
    io::write_safetensors(to / "model.safetensors", tensors);
    std::ofstream(to / "config.json") << config.dump(1);
  }

  std::filesystem::path root_;
  std::deque<model::PackedLayer> layers_;
  std::deque<Buffer> copies_;
  std::vector<io::NamedTensor> packed_;
  std::vector<io::NamedTensor> dense_;
};

}  // namespace longspan::testing
