// `longspan inspect`: what is in a model directory: shape of the model, tensors, dtypes, quantisation.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <map>

#include "cli/commands.h"
#include "core/units.h"
#include "io/model_config.h"
#include "io/quantized_linear.h"
#include "io/tensor_store.h"
#include "io/weight_layout.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  std::string model;
  bool tensors = false;
  bool json = false;
};

// Tensors and bytes of one dtype.
struct Count {
  size_t tensors = 0;
  size_t bytes = 0;
};

Json config_json(const io::ModelConfig& config) {
  Json layers = Json::array();
  for (io::LayerKind kind : config.layers) layers.push_back(io::to_string(kind));
  Json out = {{"architecture", config.architecture_name},
              {"dtype", dtype_name(config.dtype)},
              {"num_layers", config.num_layers()},
              {"full_attention_layers", config.num_layers_of(io::LayerKind::kFullAttention)},
              {"hidden_size", config.hidden_size},
              {"intermediate_size", config.intermediate_size},
              {"num_q_heads", config.num_q_heads},
              {"num_kv_heads", config.num_kv_heads},
              {"head_dim", config.head_dim},
              {"rotary_dim", config.rotary_dim},
              {"rope_theta", config.rope_theta},
              {"vocab_size", config.vocab_size},
              {"max_position_embeddings", config.max_position_embeddings},
              {"tie_word_embeddings", config.tie_word_embeddings}};
  if (config.is_hybrid()) {
    out["linear_num_key_heads"] = config.linear_num_key_heads;
    out["linear_num_value_heads"] = config.linear_num_value_heads;
    out["linear_key_head_dim"] = config.linear_key_head_dim;
    out["linear_value_head_dim"] = config.linear_value_head_dim;
    out["linear_conv_kernel"] = config.linear_conv_kernel;
  }
  out["quantization"] = config.quantization.quantised() ? Json(config.quantization.method_name) : Json();
  out["layers"] = layers;
  return out;
}

Json tensors_json(const io::TensorStore& store) {
  Json out = Json::array();
  for (const std::string& name : store.names()) {
    const io::TensorInfo& info = store.info(name);
    out.push_back(
        {{"name", name}, {"dtype", dtype_name(info.dtype)}, {"shape", info.dims}, {"file", info.file}});
  }
  return out;
}

// How each quantised layer lies, and where tensors and config disagree.
Json quantisation_json(const io::QuantSurvey& survey) {
  Json layers = Json::object();
  for (const auto& [module, layout] : survey.quantised)
    layers[module] = {
        {"form", io::to_string(layout.form)}, {"shape", {layout.out_features, layout.in_features}},
        {"group_size", layout.group_size},    {"scale_rows", layout.scale_rows},
        {"zeros", layout.has_zeros},          {"group_index", !layout.group_index.empty()}};
  return {{"summary", survey.describe()},
          {"dense_against_config", survey.dense_against_config},
          {"quantised_against_config", survey.quantised_against_config},
          {"layers", layers}};
}

void print(const io::QuantSurvey& survey) {
  if (survey.quantised.empty()) return;
  std::printf("%-26s %s\n", "quantised layers", survey.describe().c_str());
  for (const auto& [what, modules] :
       {std::pair("dense against config", &survey.dense_against_config),
        std::pair("quantised against config", &survey.quantised_against_config)})
    if (!modules->empty())
      std::printf("%-26s %zu layers, the first is %s\n", what, modules->size(), modules->front().c_str());
}

void print(const Json& config, const io::TensorStore* store, const io::WeightLayout& layout, bool all) {
  for (const auto& [key, value] : config.items())
    if (key != "layers")
      std::printf("%-26s %s\n", key.c_str(),
                  value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  if (store == nullptr) {
    std::printf("no weights: config.json alone\n");
    return;
  }
  std::map<std::string, Count> by_dtype;
  for (const std::string& name : store->names()) {
    const io::TensorInfo& info = store->info(name);
    Count& count = by_dtype[std::string(dtype_name(info.dtype))];
    ++count.tensors;
    count.bytes += static_cast<size_t>(info.size_bytes);
    if (all) std::printf("  %s  (%s)\n", io::to_string(info).c_str(), info.file.c_str());
  }
  for (const auto& [dtype, count] : by_dtype)
    std::printf("%-26s %zu tensors, %s\n", dtype.c_str(), count.tensors, format_bytes(count.bytes).c_str());
  std::printf("%-26s %zu of the language model under '%s'; skipped: %zu vision, %zu multi-token prediction\n",
              "tensors", layout.text.size(), layout.prefix.c_str(), layout.num_visual, layout.num_mtp);
}

int inspect(const InspectFlags& flags) {
  const io::ModelConfig config = io::load_model_config(flags.model);
  std::optional<io::TensorStore> store;
  io::WeightLayout layout;
  const std::filesystem::path path(flags.model);
  io::QuantSurvey survey;
  if (io::has_weights(path)) {
    store.emplace(path);
    layout = io::detect_weight_layout(*store, config);
    survey = io::survey_quantisation(*store, config.quantization, layout.text);
  }
  Json out = config_json(config);
  if (!flags.json) {
    print(out, store ? &*store : nullptr, layout, flags.tensors);
    print(survey);
    return 0;
  }
  if (store) {
    out["num_text_tensors"] = layout.text.size();
    out["num_visual_tensors"] = layout.num_visual;
    out["num_mtp_tensors"] = layout.num_mtp;
    if (!survey.quantised.empty()) out["quantised"] = quantisation_json(survey);
    out["tensors"] = tensors_json(*store);
  }
  std::printf("%s\n", out.dump(2).c_str());
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command =
      app.add_subcommand("inspect", "Shape, tensors, dtypes and quantisation of a model directory");
  command->add_option("--model", flags->model, "Model directory, or a config.json")->required();
  command->add_flag("--tensors", flags->tensors, "List every tensor");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, &exit_code] { exit_code = inspect(*flags); });
}

}  // namespace longspan::cli
