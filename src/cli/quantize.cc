// `longspan quantize`: round-to-nearest INT4 of a model directory, in a published layout. File by file:
// memory holds one file's packed weights.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "cli/commands.h"
#include "cli/progress.h"
#include "core/units.h"
#include "io/json.h"
#include "io/model_config.h"
#include "io/quantized_linear.h"
#include "io/weight_layout.h"
#include "model/quantized_writer.h"

namespace longspan::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct QuantizeFlags {
  std::string model;
  std::string out;
  std::string layout = "compressed-tensors";
  Index group_size = 128;
  bool symmetric = false;
  int threads = 0;  // 0: all this process may use
  bool json = false;
};

struct TensorReport {
  std::string module;
  Index out_features = 0;
  Index in_features = 0;
  double relative_error = 0;
  float largest_error = 0;
};

struct Report {
  std::vector<TensorReport> layers;
  std::vector<std::string> kept;  // projections whose shape does not fit
  double squared_error = 0;
  double squared_norm = 0;
  size_t bytes_before = 0;
  size_t bytes_after = 0;
};

model::QuantizeOptions options_of(const QuantizeFlags& flags) {
  return {
      .layout = flags.layout == "awq" ? model::PackedLayout::kAwq : model::PackedLayout::kCompressedTensors,
      .group_size = flags.group_size,
      .symmetric = flags.symmetric};
}

void check(const QuantizeFlags& flags, const io::ModelConfig& config) {
  if (config.quantization.quantised())
    fail(ErrorKind::kInvalid, "{}: got weights that are quantised already ({} says {}), need floats",
         flags.model, config.quantization.source, config.quantization.method_name);
  if (flags.group_size < 8 || flags.group_size % 8 != 0)
    fail(ErrorKind::kInvalid, "--group-size: got {}, need a multiple of 8", flags.group_size);
  if (flags.threads < 0) fail(ErrorKind::kInvalid, "--threads: got {}, need 0 or more", flags.threads);
  if (fs::exists(flags.out) && !fs::is_empty(flags.out))
    fail(ErrorKind::kInvalid, "--out {}: got a place that is not empty", flags.out);
}

std::string module_of(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : std::string();
}

void check_finite(const std::string& name, const TensorView& view, ThreadPool& pool) {
  dispatch_dtype(view.dtype, [&]<class T>() {
    const T* values = view.as<T>();
    const Index at = pool.find_first(view.num_elements(), 1 << 16, [&](Index begin, Index end) -> Index {
      const T* found = std::find_if(values + begin, values + end,
                                    [](T value) { return !std::isfinite(static_cast<float>(value)); });
      return found == values + end ? -1 : found - values;
    });
    if (at >= 0) fail(ErrorKind::kInvalid, "tensor {}: element {} is not finite", name, at);
  });
}

// One weight file with its projections packed, everything else as it was.
class FileWriter {
 public:
  FileWriter(const io::SafetensorsFile& file, const model::QuantizeOptions& options, ThreadPool& pool,
             Report& report)
      : file_(file), options_(options), pool_(pool), report_(report) {}

  void add(const io::TensorInfo& info) {
    report_.bytes_before += static_cast<size_t>(info.size_bytes);
    const std::string module = module_of(info.name);
    const bool projection = io::weight_family(info.name) == io::WeightFamily::kText &&
                            io::is_projection(module) && info.dims.size() == 2;
    if (projection && model::can_quantize(info.dims[0], info.dims[1], options_)) {
      pack(info, module);
    } else {
      if (projection) report_.kept.push_back(module);
      const std::span<const std::byte> bytes = file_.bytes(info.name);
      // The bytes are only read: a view's pointer is not const.
      tensors_.push_back({info.name,
                          TensorView(const_cast<std::byte*>(bytes.data()), info.dtype, {info.num_elements()}),
                          info.dims});
    }
  }

  void write(const fs::path& path) {
    for (const io::NamedTensor& tensor : tensors_) report_.bytes_after += tensor.view.size_bytes();
    io::write_safetensors(path, tensors_, file_.metadata());
  }
  const std::vector<io::NamedTensor>& tensors() const { return tensors_; }

 private:
  void pack(const io::TensorInfo& info, const std::string& module) {
    const TensorView view = file_.view(info.name);
    check_finite(info.name, view, pool_);
    model::PackedLinear packed = model::quantize(view, options_, pool_);
    report_.layers.push_back(
        {module, view.dim(0), view.dim(1), packed.relative_error(), packed.largest_error});
    report_.squared_error += packed.squared_error;
    report_.squared_norm += packed.squared_norm;
    for (model::PackedLinear::Tensor& tensor : packed.tensors) {
      tensors_.push_back({module + tensor.suffix, tensor.buffer.view()});
      owned_.push_back(std::move(tensor.buffer));
    }
    file_.release(info.name);
  }

  const io::SafetensorsFile& file_;
  const model::QuantizeOptions& options_;
  ThreadPool& pool_;
  Report& report_;
  std::vector<io::NamedTensor> tensors_;
  std::vector<Buffer> owned_;
};

Json quantization_config(const QuantizeFlags& flags, const Report& report) {
  if (flags.layout == "awq") {
    Json skipped = {"in_proj_a", "in_proj_b", "lm_head", "visual", "mtp"};  // substrings
    for (const std::string& module : report.kept) skipped.push_back(module);
    return {{"quant_method", "awq"}, {"bits", 4},         {"group_size", flags.group_size},
            {"zero_point", true},    {"version", "gemm"}, {"modules_to_not_convert", skipped}};
  }
  Json ignore = {"lm_head", "re:.*in_proj_[ab]$", "re:.*visual.*", "re:.*mtp.*"};
  for (const std::string& module : report.kept) ignore.push_back(module);
  const Json weights = {{"num_bits", 4},
                        {"type", "int"},
                        {"symmetric", flags.symmetric},
                        {"strategy", "group"},
                        {"group_size", flags.group_size},
                        {"actorder", nullptr},
                        {"dynamic", false},
                        {"observer", "minmax"}};
  const Json group = {{"targets", Json::array({"Linear"})},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr},
                      {"weights", weights}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"ignore", ignore},
          {"config_groups", {{"group_0", group}}}};
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream stream(path, std::ios::binary);
  stream << text << "\n";
  stream.close();
  if (!stream) fail(ErrorKind::kEnvironment, "{}: cannot be written", path.string());
}

// config.json with its new section, and whatever else is not weights.
void write_others(const QuantizeFlags& flags, const Report& report) {
  Json config = Json::parse(io::read_text_file(fs::path(flags.model) / "config.json"));
  config["quantization_config"] = quantization_config(flags, report);
  write_text(fs::path(flags.out) / "config.json", config.dump(2));
  for (const fs::directory_entry& entry : fs::directory_iterator(flags.model)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name == "config.json" || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json"))
      continue;
    fs::copy_file(entry.path(), fs::path(flags.out) / name);
    fs::permissions(fs::path(flags.out) / name, fs::perms::owner_write, fs::perm_options::add);
  }
}

Report quantize_files(const QuantizeFlags& flags, const io::TensorStore& store) {
  const model::QuantizeOptions options = options_of(flags);
  size_t total = 0;
  for (const io::SafetensorsFile& file : store.files())
    for (const io::TensorInfo& info : file.tensors()) total += static_cast<size_t>(info.size_bytes);
  ThreadPool pool(flags.threads > 0 ? flags.threads : usable_cpus());
  const auto tell = progress("quantising");
  Report report;
  Json weight_map = Json::object();
  for (const io::SafetensorsFile& file : store.files()) {
    FileWriter writer(file, options, pool, report);
    for (const io::TensorInfo& info : file.tensors()) {
      writer.add(info);
      tell(report.bytes_before, total);
    }
    const fs::path name = file.path().filename();
    writer.write(fs::path(flags.out) / name);
    for (const io::NamedTensor& tensor : writer.tensors()) weight_map[tensor.name] = name.string();
  }
  if (store.files().size() > 1)
    write_text(fs::path(flags.out) / "model.safetensors.index.json",
               Json{{"metadata", {{"total_size", report.bytes_after}}}, {"weight_map", weight_map}}.dump(2));
  return report;
}

void print(const Report& report) {
  std::printf("%-60s %16s %10s %10s\n", "layer", "shape", "rel. error", "largest");
  for (const TensorReport& layer : report.layers)
    std::printf("%-60s %16s %10.4f %10.3g\n", layer.module.c_str(),
                fmt::format("{} x {}", layer.out_features, layer.in_features).c_str(), layer.relative_error,
                static_cast<double>(layer.largest_error));
  for (const std::string& module : report.kept)
    std::printf("%-60s left as it is: its shape does not fit the layout\n", module.c_str());
}

Json to_json(const Report& report) {
  Json layers = Json::array();
  for (const TensorReport& layer : report.layers)
    layers.push_back({{"module", layer.module},
                      {"shape", {layer.out_features, layer.in_features}},
                      {"relative_error", layer.relative_error},
                      {"largest_error", layer.largest_error}});
  return {{"layers", layers},
          {"kept", report.kept},
          {"relative_error",
           report.squared_norm > 0 ? std::sqrt(report.squared_error / report.squared_norm) : 0.0},
          {"bytes_before", report.bytes_before},
          {"bytes_after", report.bytes_after}};
}

int quantize(const QuantizeFlags& flags) {
  const io::ModelConfig config = io::load_model_config(flags.model);
  check(flags, config);
  const io::TensorStore store(flags.model);
  const io::WeightLayout layout = io::detect_weight_layout(store, config);
  if (const auto survey = io::survey_quantisation(store, config.quantization, layout.text);
      !survey.quantised.empty())
    fail(ErrorKind::kInvalid, "{}: got weights that are quantised already ({}), need floats", flags.model,
         survey.describe());
  std::error_code status;
  fs::create_directories(flags.out, status);
  if (status) fail(ErrorKind::kEnvironment, "{}: {}", flags.out, status.message());
  const Report report = quantize_files(flags, store);
  write_others(flags, report);
  if (flags.json) {
    std::printf("%s\n", to_json(report).dump(2).c_str());
    return 0;
  }
  print(report);
  std::printf("%zu layers, relative error %.4f; %s became %s in %s\n", report.layers.size(),
              to_json(report)["relative_error"].get<double>(), format_bytes(report.bytes_before).c_str(),
              format_bytes(report.bytes_after).c_str(), flags.out.c_str());
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command = app.add_subcommand(
      "quantize", "Round-to-nearest INT4 of a model directory, in the AWQ or compressed-tensors layout");
  command->add_option("--model", flags->model, "Model directory with float weights")->required();
  command->add_option("--out", flags->out, "Where the new directory goes; new or empty")->required();
  command->add_option("--layout", flags->layout, "awq or compressed-tensors")
      ->check(CLI::IsMember({"awq", "compressed-tensors"}))
      ->capture_default_str();
  command->add_option("--group-size", flags->group_size, "Inputs that share a scale")->capture_default_str();
  command->add_flag("--symmetric", flags->symmetric,
                    "One zero point for all: a little smaller, a little worse");
  command->add_option("--threads", flags->threads, "0: all this process may use")->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, &exit_code] { exit_code = quantize(*flags); });
}

}  // namespace longspan::cli
