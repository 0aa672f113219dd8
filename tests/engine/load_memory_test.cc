// What loading takes at its worst: the packed weights and one layer, in every packed form. A program of its
// own, for it looks at the memory of the process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <random>

#include <nlohmann/json.hpp>

#include "engine/host_memory.h"
#include "ops/cpu/backend.h"
#include "support/fixture.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr Index kHidden = 1024;
constexpr Index kWidth = 4096;  // of the MLP
constexpr Index kHeads = 8, kHeadDim = 128;
constexpr Index kVocab = 256;
constexpr Index kGroup = 128;
constexpr int kLayers = 4;

enum class Form : uint8_t { kAwq, kGptq, kPacked, kFp8 };

// Random tensors of a small dense decoder, its projections in few bits.
class Checkpoint {
 public:
  explicit Checkpoint(Form form) : form_(form) {
    add("model.embed_tokens.weight", DType::kBF16, {kVocab, kHidden});
    add("model.norm.weight", DType::kBF16, {kHidden});
    for (int i = 0; i < kLayers; ++i) {
      const std::string at = fmt::format("model.layers.{}.", i);
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
        add(at + norm + ".weight", DType::kBF16, {kHidden});
      for (const char* norm : {"q_norm", "k_norm"})
        add(at + "self_attn." + norm + ".weight", DType::kBF16, {kHeadDim});
      add_linear(at + "self_attn.q_proj", kHeads * kHeadDim, kHidden);
      add_linear(at + "self_attn.k_proj", kHeadDim, kHidden);
      add_linear(at + "self_attn.v_proj", kHeadDim, kHidden);
      add_linear(at + "self_attn.o_proj", kHidden, kHeads * kHeadDim);
      add_linear(at + "mlp.gate_proj", kWidth, kHidden);
      add_linear(at + "mlp.up_proj", kWidth, kHidden);
      add_linear(at + "mlp.down_proj", kHidden, kWidth);
    }
  }

  // `shift`: bytes by which tensors lie off their alignment in the file.
  void write(const fs::path& to, size_t shift) const {
    fs::create_directories(to);
    std::vector<io::NamedTensor> tensors;
    for (const auto& [name, buffer] : tensors_) tensors.push_back({name, buffer.view()});
    io::write_safetensors(to / "model.safetensors", tensors);
    if (shift > 0) move_data(to / "model.safetensors", shift);
    std::ofstream(to / "config.json") << config().dump(1);
  }

 private:
  Buffer& add(const std::string& name, DType dtype, Shape shape) {
    Buffer& buffer = tensors_.emplace_back(name, Buffer(dtype, shape)).second;
    if (dtype == DType::kBF16) std::fill_n(buffer.view().as<bf16>(), shape.num_elements(), bf16(0.01f));
    if (dtype == DType::kF16) std::fill_n(buffer.view().as<f16>(), shape.num_elements(), f16(0.01f));
    return buffer;
  }
  void add_codes(const std::string& name, DType dtype, Shape shape, uint64_t mask) {
    const Buffer& buffer = add(name, dtype, shape);
    auto* const words = static_cast<uint64_t*>(buffer.data());
    for (size_t i = 0; i < buffer.size_bytes() / sizeof(uint64_t); ++i) words[i] = random_() & mask;
  }
  void add_linear(const std::string& module, Index n, Index k) {
    constexpr uint64_t kAll = ~uint64_t{0};
    switch (form_) {
      case Form::kAwq:
        add_codes(module + ".qweight", DType::kI32, {k, n / 8}, kAll);
        add_codes(module + ".qzeros", DType::kI32, {k / kGroup, n / 8}, kAll);
        add(module + ".scales", DType::kF16, {k / kGroup, n});
        return;
      case Form::kGptq:
        add_codes(module + ".qweight", DType::kI32, {k / 8, n}, kAll);
        add_codes(module + ".qzeros", DType::kI32, {k / kGroup, n / 8}, kAll);
        add(module + ".scales", DType::kF16, {k / kGroup, n});
        return;
      case Form::kPacked: {
        add_codes(module + ".weight_packed", DType::kI32, {n, k / 8}, kAll);
        add_codes(module + ".weight_zero_point", DType::kI32, {n / 8, k / kGroup}, kAll);
        add(module + ".weight_scale", DType::kBF16, {n, k / kGroup});
        auto* const shape = add(module + ".weight_shape", DType::kI64, {2}).view().as<int64_t>();
        shape[0] = n;
        shape[1] = k;
        return;
      }
      case Form::kFp8:
        add_codes(module + ".weight", DType::kF8E4M3, {n, k}, 0xbfbfbfbfbfbfbfbfull);
        add(module + ".weight_scale_inv", DType::kBF16, {n / 128, k / 128});
    }
  }
  nlohmann::json config() const {
    nlohmann::json config =
        nlohmann::json::parse(std::ifstream(testing::model_dir("dense_qwen3") / "config.json"));
    config["hidden_size"] = kHidden;
    config["intermediate_size"] = kWidth;
    config["num_attention_heads"] = kHeads;
    config["num_key_value_heads"] = 1;
    config["head_dim"] = kHeadDim;
    config["vocab_size"] = kVocab;
    config["num_hidden_layers"] = kLayers;
    config["layer_types"] = std::vector<std::string>(kLayers, "full_attention");
    const nlohmann::json weights = {{"num_bits", 4},
                                    {"type", "int"},
                                    {"symmetric", false},
                                    {"strategy", "group"},
                                    {"group_size", kGroup}};
    const nlohmann::json group = {{"targets", {"Linear"}}, {"weights", weights}};
    config["quantization_config"] =
        form_ == Form::kAwq ? nlohmann::json{{"quant_method", "awq"},
                                             {"bits", 4},
                                             {"group_size", kGroup},
                                             {"zero_point", true},
                                             {"version", "gemm"}}
        : form_ == Form::kGptq
            ? nlohmann::json{{"quant_method", "gptq"}, {"bits", 4},         {"group_size", kGroup},
                             {"sym", false},           {"desc_act", false}, {"checkpoint_format", "gptq"}}
        : form_ == Form::kPacked
            ? nlohmann::json{{"quant_method", "compressed-tensors"},
                             {"format", "pack-quantized"},
                             {"config_groups", {{"group_0", group}}}}
            : nlohmann::json{{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
    return config;
  }
  // A longer header, as writers that do not pad it leave it.
  static void move_data(const fs::path& path, size_t shift) {
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    bytes.insert(sizeof(header) + header, std::string(shift, ' '));
    header += shift;
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::ofstream(path, std::ios::binary) << bytes;
  }

  Form form_;
  std::mt19937_64 random_{1};
  std::deque<std::pair<std::string, Buffer>> tensors_;
};

// From now on the peak counts anew. (getrusage's would not: it remembers what the process was before exec.)
bool forget_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }
size_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

void expect_one_layer_beside(Form form, size_t shift) {
  const fs::path path = fs::temp_directory_path() / fmt::format("longspan_peak_{}", ::getpid());
  Checkpoint(form).write(path, shift);
  const io::ModelConfig config = io::load_model_config(path);
  const io::TensorStore store(path);
  ops::Ops ops(ops::cpu::make_backend({.num_threads = 2}));
  model::WeightSource source(store, config, nullptr);
  if (!forget_peak()) GTEST_SKIP() << "this kernel does not forget a peak";
  const size_t before = engine::resident_bytes();
  const model::Model model(config, DType::kBF16, source, ops);
  const size_t peak = peak_bytes() - before;
  // The largest layer is gate and up. What is no weight: norms, the pool's scratch, headers.
  const size_t layer = static_cast<size_t>(2 * kWidth * kHidden) / (form == Form::kFp8 ? 1 : 2);
  constexpr size_t kElse = size_t{1} << 20;
  std::printf("  form %d: %.1f MB packed, %.1f MB at the peak, a layer is %.1f MB\n", static_cast<int>(form),
              static_cast<double>(model.weight_bytes()) * 1e-6, static_cast<double>(peak) * 1e-6,
              static_cast<double>(layer) * 1e-6);
  EXPECT_LE(peak, model.weight_bytes() + layer + kElse);
  EXPECT_GE(peak, model.weight_bytes());
  fs::remove_all(path);
}

TEST(LoadMemory, PeaksAtThePackedWeightsAndOneLayer) {
  for (const Form form : {Form::kAwq, Form::kGptq, Form::kPacked, Form::kFp8})
    expect_one_layer_beside(form, 0);
}

// Where tensors cannot be read in place, their copies go as well.
TEST(LoadMemory, CopiesOfMisalignedTensorsGo) { expect_one_layer_beside(Form::kGptq, 1); }

}  // namespace
}  // namespace longspan
