// Each published layout read back value by value; the fixtures hold the usual cases, these the others.
#include "packed_layer.h"

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

}  // namespace
}  // namespace longspan::model
