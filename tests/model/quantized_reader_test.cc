// Each published layout read back value by value; the fixtures hold the usual cases, these the others.
#include "support/packed_layer.h"

namespace longspan::model {
namespace {

io::QuantConfig config_of(io::QuantMethod method, const char* format, int group_size) {
  return {.method = method,
          .method_name = "test",
          .format = format,
          .bits = 4,
          .group_size = group_size,
          .symmetric = false};
}

TEST(QuantizedReader, AwqInterleavesColumns) {
  PackedLayer layer(24, 96, 32);
  layer.add_awq("m");
  layer.expect_read_back(config_of(io::QuantMethod::kAwq, "gemm", 32), "m");
  layer.expect_read_back({}, "m");  // the tensors say it all
}

TEST(QuantizedReader, GptqZerosOfBothFormats) {
  PackedLayer first(16, 64, 32);
  first.add_gptq("m", /*zero_offset=*/1, /*with_index=*/false);
  first.expect_read_back(config_of(io::QuantMethod::kGptq, "gptq", 32), "m");
  PackedLayer second(16, 64, 32);
  second.add_gptq("m", /*zero_offset=*/0, /*with_index=*/true);
  second.expect_read_back(config_of(io::QuantMethod::kGptq, "gptq_v2", 32), "m");
}

TEST(QuantizedReader, GptqGroupsInTheOrderOfActivations) {
  PackedLayer layer(16, 64, 16);
  layer.permute_groups();
  layer.add_gptq("m", 1, /*with_index=*/true);
  io::QuantConfig config = config_of(io::QuantMethod::kGptq, "gptq", 16);
  config.desc_act = true;
  layer.expect_read_back(config, "m");
}

TEST(QuantizedReader, AutoRoundInTheGptqPacking) {
  PackedLayer layer(16, 64, 32);
  layer.add_gptq("m", 1, false);
  layer.expect_read_back(config_of(io::QuantMethod::kAutoRound, "auto_round:auto_gptq", 32), "m");
}

io::QuantConfig packed_config(int group_size, bool symmetric) {
  io::QuantConfig config = config_of(io::QuantMethod::kCompressedTensors, "pack-quantized", group_size);
  config.groups = {{.name = "group_0", .bits = 4, .group_size = group_size, .symmetric = symmetric}};
  return config;
}

// Widths that are no multiple of eight, either size type, either scale type.
TEST(QuantizedReader, CompressedTensorsOfAnyWidth) {
  PackedLayer grouped(13, 75, 32);
  grouped.add_packed<f16, int32_t>("m", /*with_zeros=*/true, /*with_index=*/false);
  grouped.expect_read_back(packed_config(32, false), "m");
  PackedLayer channel(13, 75, 75);
  channel.make_symmetric();
  channel.add_packed<float, int64_t>("m", /*with_zeros=*/false, /*with_index=*/false);
  channel.expect_read_back(packed_config(-1, true), "m");
  PackedLayer permuted(16, 64, 16);
  permuted.permute_groups();
  permuted.add_packed<bf16, int64_t>("m", /*with_zeros=*/true, /*with_index=*/true);
  permuted.expect_read_back(packed_config(16, false), "m");
}

TEST(QuantizedReader, LayersOfSeveralFormsShareACheckpoint) {
  io::QuantConfig config = packed_config(32, false);
  config.groups.push_back({.name = "group_1", .bits = 4, .group_size = 16, .symmetric = true});
  PackedLayer first(16, 64, 32);
  first.add_packed<bf16, int64_t>("a", true, false);
  first.expect_read_back(config, "a");
  PackedLayer second(16, 64, 16);
  second.make_symmetric();
  second.add_packed<bf16, int64_t>("b", false, false);
  second.expect_read_back(config, "b");
}

// Rows and columns for several tasks, and some left over.
TEST(QuantizedReader, ThreadsShareALayer) {
  io::QuantConfig config = config_of(io::QuantMethod::kGptq, "gptq", 64);
  config.desc_act = true;
  PackedLayer gptq(152, 320, 64);
  gptq.permute_groups();
  gptq.add_gptq("m", 1, /*with_index=*/true);
  gptq.expect_read_back(config, "m");
  PackedLayer awq(272, 160, 32);
  awq.add_awq("m");
  awq.expect_read_back(config_of(io::QuantMethod::kAwq, "gemm", 32), "m");
}

// The first bad element is named, however many threads look for it.
TEST(QuantizedReader, NamesTheFirstElementThatIsNotFinite) {
  const Index n = 512, k = 512;
  Buffer codes(DType::kF8E4M3, {n, k}), scales(DType::kF32, {4, 4});
  std::fill_n(scales.view().as<float>(), 16, 1.0f);
  auto* const bytes = static_cast<uint8_t*>(codes.data());
  for (const Index at : {70'000, 199'999, 262'143}) bytes[at] = 0xff;
  const io::QuantConfig config{.method = io::QuantMethod::kFp8, .method_name = "fp8", .block = {128, 128}};
  const auto refusal = [&](int num_threads) -> std::string {
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       ("longspan_nan_" + std::to_string(::getpid()) + ".safetensors");
    const io::NamedTensor tensors[] = {{"m.weight", codes.view()}, {"m.weight_scale_inv", scales.view()}};
    io::write_safetensors(path, tensors);
    const io::TensorStore store(path);
    std::filesystem::remove(path);
    ThreadPool pool(num_threads);
    try {
      read_quantized(store, config, io::find_linear(store, config, "m"), pool);
      return "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kInvalid);
      return error.what();
    }
  };
  for (const int num_threads : {1, 4})
    EXPECT_EQ(refusal(num_threads), "tensor m.weight: element 70000 is not finite");
  for (const Index at : {70'000, 199'999, 262'143}) bytes[at] = 0;
  scales.view().as<float>()[5] = std::nanf("");
  EXPECT_EQ(refusal(3), "tensor m.weight_scale_inv: element 5 is not finite");
}

}  // namespace
}  // namespace longspan::model
