// Bad input gets one clear line and exit code 2, never a crash: the real program on broken models and
// prompts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tensor_store.h"
#include "support/program.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

using testing::longspan;
using testing::Outcome;

// A small model directory to break: weights of a fixture, tokenizer and template of the bundled model (whose
// vocabulary is larger, so only commands that fail before the first token may use it whole).
class BadInput : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("longspan_bad_input_" + std::to_string(::getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    const fs::path source = LONGSPAN_SOURCE_DIR;
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy(source / "tests/fixtures/hybrid_r3_tied" / file, dir_ / file);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
      fs::copy(source / "models/longspan-tiny" / file, dir_ / file);
    for (const auto& entry : fs::directory_iterator(dir_))
      fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
  }
  void TearDown() override { fs::remove_all(dir_); }

  void write(const char* file, const std::string& text) const {
    std::ofstream(dir_ / file, std::ios::binary) << text;
  }
  std::string read(const char* file) const {
    std::ifstream stream(dir_ / file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // Changes one field of config.json.
  void set(const char* key, const nlohmann::json& value) const {
    nlohmann::json config = nlohmann::json::parse(read("config.json"));
    config[key] = value;
    write("config.json", config.dump());
  }
  // Writes the weights again with one tensor changed.
  void change_tensor(const std::string& name, const std::function<void(io::NamedTensor&)>& change) const {
    const io::TensorStore store(dir_);
    std::vector<io::NamedTensor> tensors;
    for (const std::string& each : store.names()) {
      tensors.push_back({each, store.view(each)});
      if (each == name) change(tensors.back());
    }
    io::write_safetensors(dir_ / "changed.safetensors", tensors);
    fs::rename(dir_ / "changed.safetensors", dir_ / "model.safetensors");
  }

  // The last line is ours; exit code 2; every word is in it.
  void expect_refused(const std::string& arguments, const std::vector<std::string>& words) const {
    const Outcome outcome = longspan(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.out;
    const size_t end = outcome.out.find_last_not_of('\n');
    const size_t begin = outcome.out.rfind('\n', end) + 1;
    const std::string line = outcome.out.substr(begin, end + 1 - begin);
    EXPECT_TRUE(line.starts_with("longspan: ")) << arguments << "\n" << outcome.out;
    for (const std::string& word : words)
      EXPECT_NE(line.find(word), std::string::npos) << word << " in: " << line;
  }
  std::string run(const std::string& more) const { return "run --model " + dir_.string() + " " + more; }

  fs::path dir_;
};

constexpr const char* kTiny = "--model " LONGSPAN_SOURCE_DIR "/models/longspan-tiny ";

TEST_F(BadInput, MissingFiles) {
  expect_refused("run --model /nonexistent --prompt x", {"/nonexistent"});
  fs::remove(dir_ / "model.safetensors");
  expect_refused(run("--prompt x"), {"model.safetensors"});
  fs::remove(dir_ / "config.json");
  expect_refused(run("--prompt x"), {"config.json"});
  fs::remove(dir_ / "tokenizer.json");
  expect_refused(run("--prompt x"), {"tokenizer.json"});
  expect_refused(std::string("run ") + kTiny + "--prompt-file /nonexistent.txt", {"/nonexistent.txt"});
}

TEST_F(BadInput, TruncatedWeights) {
  fs::resize_file(dir_ / "model.safetensors", fs::file_size(dir_ / "model.safetensors") - 1000);
  expect_refused(run("--prompt x"), {"model.safetensors"});
  fs::resize_file(dir_ / "model.safetensors", 5);
  expect_refused(run("--prompt x"), {"model.safetensors"});
}

TEST_F(BadInput, WrongShapeNamesTensorGotAndNeed) {
  set("intermediate_size", 200);
  expect_refused(run("--prompt x"), {"layers.0.mlp.gate_proj.weight", "[192, 96]", "[200, 96]"});
}

TEST_F(BadInput, MissingTensor) {
  set("num_hidden_layers", 5);
  set("layer_types",
      {"linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"});
  expect_refused(run("--prompt x"), {"layers.4.", "no tensor"});
}

TEST_F(BadInput, NanWeightsAreNamed) {
  std::vector<bf16> values;
  change_tensor("model.layers.1.mlp.down_proj.weight", [&](io::NamedTensor& tensor) {
    const bf16* from = tensor.view.as<bf16>();
    values.assign(from, from + tensor.view.num_elements());
    values[77] = bf16(std::nanf(""));
    tensor.view.data = values.data();
  });
  expect_refused(run("--prompt x"), {"model.layers.1.mlp.down_proj.weight", "77", "not finite"});
}

// Forms of quantisation that are not read, told before anything that would be said of a model that runs.
TEST_F(BadInput, UnknownQuantisationIsRefusedBeforeTheStartLines) {
  std::vector<uint8_t> bytes(192 * 48);
  change_tensor("model.layers.0.mlp.gate_proj.weight", [&](io::NamedTensor& tensor) {
    tensor.name = "model.layers.0.mlp.gate_proj.weight_packed";
    tensor.view = TensorView(bytes.data(), DType::kU8, {192, 48});
  });
  set("quantization_config", {{"quant_method", "modelopt"}});
  expect_refused(run("--prompt x"), {"layers.0.mlp.gate_proj.weight_packed", "NVFP4", "says modelopt"});
  EXPECT_EQ(longspan(run("--prompt x")).out.find("page "), std::string::npos);
}

// Packs that contradict themselves or the config: of each fixture, one tensor changed.
TEST_F(BadInput, MalformedPacksAreNamed) {
  const auto use = [&](const char* fixture) {
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy_file(fs::path(LONGSPAN_SOURCE_DIR) / "tests/fixtures" / fixture / file, dir_ / file,
                    fs::copy_options::overwrite_existing);
      fs::permissions(dir_ / file, fs::perms::owner_write, fs::perm_options::add);
    }
  };
  const auto rename = [](io::NamedTensor& tensor) { tensor.name += ".lost"; };
  const auto halve = [](io::NamedTensor& tensor) {
    tensor.view = tensor.view.rows(0, tensor.view.dim(0) / 2);
  };
  const std::string down = "model.layers.1.mlp.down_proj.";

  use("quant_awq_g128");
  change_tensor(down + "scales", rename);
  expect_refused(run("--prompt x"), {down + "scales is missing"});
  use("quant_awq_g128");
  change_tensor(down + "qzeros", halve);
  expect_refused(run("--prompt x"), {down + "qzeros", "[1, 16]", "[2, 16]"});
  use("quant_awq_g128");
  change_tensor(down + "scales", halve);
  expect_refused(run("--prompt x"), {down + "scales", "1 groups of 256 inputs", "groups of 128"});
  use("quant_awq_g128");
  set("quantization_config", {{"quant_method", "awq"}, {"bits", 8}, {"group_size", 128}});
  expect_refused(run("--prompt x"), {"qweight", "8-bit codes", "need 4-bit"});

  use("quant_gptq_g128_sym");
  change_tensor(down + "g_idx", halve);
  expect_refused(run("--prompt x"), {down + "g_idx", "[128]", "[256]"});
  use("quant_gptq_g128_sym");
  std::vector<int32_t> groups(256, 2);
  change_tensor(down + "g_idx", [&](io::NamedTensor& tensor) { tensor.view.data = groups.data(); });
  expect_refused(run("--prompt x"), {down + "g_idx", "groups out of order", "desc_act is false"});
  set("quantization_config",
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", true}});
  expect_refused(run("--prompt x"), {down + "g_idx", "got 2, need 0 .. 1"});
  set("quantization_config", {{"quant_method", "auto-round"}, {"packing_format", "auto_round"}});
  expect_refused(run("--prompt x"), {"packing_format auto_round, need auto_round:auto_gptq"});

  use("quant_ct_g128_sym");
  change_tensor(down + "weight_packed", halve);
  expect_refused(run("--prompt x"), {down + "weight_packed", "got 64 rows, need 128"});
  use("quant_ct_g32_asym");
  change_tensor(down + "weight_zero_point", rename);
  expect_refused(run("--prompt x"), {down + "weight_zero_point is missing"});

  use("quant_fp8_block128");
  change_tensor(down + "weight_scale_inv", rename);
  expect_refused(run("--prompt x"), {down + "weight fp8_e4m3", "weight_scale_inv"});
  use("quant_fp8_block128");
  std::vector<uint8_t> codes(128 * 256);
  codes[77] = 0xff;
  change_tensor(down + "weight", [&](io::NamedTensor& tensor) { tensor.view.data = codes.data(); });
  expect_refused(run("--prompt x"), {down + "weight", "element 77 is not finite"});
}

TEST_F(BadInput, Config) {
  write("config.json", "{");
  expect_refused(run("--prompt x"), {"config.json"});
  write("config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})");
  expect_refused(run("--prompt x"), {"LlamaForCausalLM"});
}

TEST_F(BadInput, TokenizerAndTemplate) {
  write("tokenizer.json", "[1, 2]");
  expect_refused(run("--prompt x"), {"tokenizer.json"});
  fs::copy_file(fs::path(LONGSPAN_SOURCE_DIR) / "models/longspan-tiny/tokenizer.json",
                dir_ / "tokenizer.json", fs::copy_options::overwrite_existing);
  write("chat_template.jinja", "line one\n{{ messages | nonsense }}\n");
  expect_refused(run("--prompt x"), {"line 2", "nonsense"});
  write("chat_template.jinja", "{% if %}");
  expect_refused(run("--prompt x"), {"line 1"});
  write("chat_template.jinja", "{{ raise_exception('No tools, please.') }}");
  expect_refused(run("--prompt x"), {"No tools, please."});
}

TEST_F(BadInput, Prompts) {
  expect_refused(std::string("run ") + kTiny + "--prompt ''", {"empty"});
  write("empty.txt", "");
  expect_refused(std::string("run ") + kTiny + "--prompt-file " + (dir_ / "empty.txt").string(), {"empty"});
  expect_refused(std::string("run ") + kTiny + "--prompt-ids " + (dir_ / "empty.txt").string(), {"empty"});
  write("bytes.txt", "good \xff\xfe bad");
  expect_refused(std::string("run ") + kTiny + "--prompt-file " + (dir_ / "bytes.txt").string(),
                 {"UTF-8", "5"});
  expect_refused(std::string("run ") + kTiny + "--prompt '\xc3('", {"UTF-8"});
  write("ids.txt", "1 2 x3");
  expect_refused(std::string("run ") + kTiny + "--prompt-ids " + (dir_ / "ids.txt").string(), {"x3"});
  write("ids.txt", "1 2 4096");
  expect_refused(std::string("run ") + kTiny + "--prompt-ids " + (dir_ / "ids.txt").string(),
                 {"4096", "4095"});
  write("ids.txt", "1 -2");
  expect_refused(std::string("run ") + kTiny + "--prompt-ids " + (dir_ / "ids.txt").string(), {"-2"});
  write("ids.txt", "99999999999999999999");
  expect_refused(std::string("run ") + kTiny + "--prompt-ids " + (dir_ / "ids.txt").string(),
                 {"99999999999999999999"});
  write("long.txt", std::string(5000, '7'));
  expect_refused(
      std::string("run ") + kTiny + "--max-model-len 1000 --prompt-file " + (dir_ / "long.txt").string(),
      {"maximum context length", "1000"});
  write("ids.txt", "7");
  expect_refused(std::string("score ") + kTiny + "--prompt-ids " + (dir_ / "ids.txt").string(),
                 {"1 tokens", "2"});
  write("ids.txt", "7 8 9");
  expect_refused(std::string("score ") + kTiny + "--logits /nonexistent/logits.safetensors --prompt-ids " +
                     (dir_ / "ids.txt").string(),
                 {"--logits", "/nonexistent/logits.safetensors"});
}

TEST_F(BadInput, ADirectoryIsNoText) {
  expect_refused(std::string("run ") + kTiny + "--prompt-file " + dir_.string(), {"directory"});
  expect_refused(std::string("tokenize ") + kTiny + "--chat " + dir_.string(), {"directory"});
}

TEST_F(BadInput, Flags) {
  EXPECT_EQ(longspan("").exit_code, 2);
  expect_refused("fly", {"unknown command", "fly"});
  EXPECT_EQ(longspan("run --model").exit_code, 2);
  EXPECT_EQ(longspan("run --prompt x").exit_code, 2);
  EXPECT_EQ(longspan("--help").exit_code, 0);
  EXPECT_EQ(longspan("run --help").exit_code, 0);
  expect_refused(std::string("run ") + kTiny + "--prompt x --dtype int3", {"int3"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --device gpu", {"gpu"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --layout round", {"round"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --temperature -1", {"temperature", "-1"});
  EXPECT_EQ(longspan(std::string("run ") + kTiny + "--prompt x --temperature -1").out.find("model "),
            std::string::npos)
      << "the model was loaded first";
  expect_refused(std::string("run ") + kTiny + "--prompt x --top-p 0", {"top_p"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --max-tokens 0", {"--max-tokens"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --threads -1", {"threads", "-1"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --max-model-len 100000000",
                 {"max_model_len", "65536"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --cache-memory 12parsecs", {"12parsecs"});
  expect_refused(std::string("run ") + kTiny + "--prompt x --max-num-batched-tokens 3",
                 {"max_num_batched_tokens", "3"});
  // A plan of these used to divide by zero, or never ended.
  expect_refused(std::string("plan ") + kTiny + "--tensor-parallel-size 0", {"tensor_parallel_size", "0"});
  expect_refused(std::string("plan ") + kTiny + "--max-num-batched-tokens 32 --prompt-tokens 100",
                 {"max_num_batched_tokens", "32"});
  expect_refused(std::string("plan ") + kTiny + "--max-num-seqs 4294967297", {"max_num_seqs", "4294967297"});
  EXPECT_EQ(longspan(std::string("tokenize ") + kTiny + "--text x --chat y").exit_code, 2);
}

}  // namespace
}  // namespace longspan
