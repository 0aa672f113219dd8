#include "io/safetensors.h"

#include <array>
#include <limits>

#include "io/files.h"

namespace longspan::io {
namespace {

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), "f.safetensors");
}

std::string refusal(const std::string& bytes) {
  return error_of(ErrorKind::kInvalid, [&] { parse(bytes); });
}

// A header with one tensor "t" of the given shape and offsets.
std::string one_tensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

TEST(SafetensorsHeader, ReadsTensorsInFileOrder) {
  const std::string bytes = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"z":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )",
      std::string(16, 'x'));
  const SafetensorsHeader header = parse(bytes);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.tensors[0].name, "z");
  const TensorInfo& a = header.tensors[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kBF16);
  EXPECT_EQ(a.dims, (std::vector<Index>{2, 3}));
  EXPECT_EQ(a.begin, bytes.size() - 12);
  EXPECT_EQ(a.size_bytes, 12u);
  EXPECT_EQ(a.num_elements(), 6);
  EXPECT_EQ(a.file, "f.safetensors");
  EXPECT_EQ(to_string(a), "a bfloat16 [2, 3]");
}

TEST(SafetensorsHeader, TakesScalarsEmptyTensorsAndFiveDimensions) {
  const SafetensorsHeader header = parse(safetensors_bytes(
      R"({"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
      R"("patches":{"dtype":"U8","shape":[1,2,1,2,1],"data_offsets":[4,8]}})",
      std::string(8, 'x')));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].num_elements(), 1);
  EXPECT_EQ(header.tensors[1].num_elements(), 0);
  EXPECT_EQ(header.tensors[2].dims.size(), 5u);
  EXPECT_TRUE(parse(safetensors_bytes("{}")).tensors.empty());
}

TEST(SafetensorsHeader, KnowsEveryDType) {
  const std::pair<const char*, DType> dtypes[] = {
      {"F64", DType::kF64},   {"F32", DType::kF32},        {"F16", DType::kF16},       {"BF16", DType::kBF16},
      {"I64", DType::kI64},   {"I32", DType::kI32},        {"I16", DType::kI16},       {"I8", DType::kI8},
      {"U64", DType::kU64},   {"U32", DType::kU32},        {"U16", DType::kU16},       {"U8", DType::kU8},
      {"BOOL", DType::kBool}, {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}};
  for (const auto& [name, dtype] : dtypes) {
    const size_t size = 3 * dtype_size(dtype);
    const SafetensorsHeader header = parse(
        safetensors_bytes(one_tensor(name, "[3]", fmt::format("[0,{}]", size)), std::string(size, 'x')));
    EXPECT_EQ(header.tensors.at(0).dtype, dtype) << name;
  }
  EXPECT_TRUE(contains(refusal(safetensors_bytes(one_tensor("F4", "[2]", "[0,1]"), "x")),
                       "f.safetensors: t: dtype: got \"F4\""));
  EXPECT_TRUE(contains(refusal(safetensors_bytes(one_tensor("bf16", "[1]", "[0,2]"), "xx")), "got \"bf16\""));
}

TEST(SafetensorsHeader, RefusesBadLengths) {
  EXPECT_TRUE(contains(refusal(""), "got 0 bytes, need at least 8"));
  EXPECT_TRUE(contains(refusal("1234567"), "got 7 bytes"));
  std::string bytes = safetensors_bytes("{}");
  const auto with_length = [&](uint64_t length) {
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes;
  };
  EXPECT_TRUE(contains(refusal(with_length(3)), "got a header of 3 bytes in a file of 10 bytes"));
  EXPECT_TRUE(
      contains(refusal(with_length(100'000'001)), "got a header of 100000001 bytes, need at most 100000000"));
  EXPECT_TRUE(contains(refusal(with_length(UINT64_MAX)), "need at most 100000000"));
  EXPECT_TRUE(contains(refusal(with_length(0)), "need a JSON object"));
}

TEST(SafetensorsHeader, RefusesWhatIsNotAnObject) {
  for (const char* header :
       {"[]", "null", "  {}", "{", "{}}", "{\"t\":1}", "{\"t\":[]}", "{\"__metadata__\":[]}"})
    refusal(safetensors_bytes(header));
  EXPECT_TRUE(contains(refusal(safetensors_bytes(R"({"__metadata__":{"n":1}})")),
                       "__metadata__: n: got 1, need a string"));
  EXPECT_TRUE(contains(refusal(safetensors_bytes(R"({"a":{"x":[[[[]]]]}})")), "nested"));
}

TEST(SafetensorsHeader, RefusesRepeatedNames) {
  const std::string twice =
      R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  EXPECT_TRUE(contains(refusal(safetensors_bytes(twice, "xx")), "key \"t\" appears twice"));
}

TEST(SafetensorsHeader, RefusesBadShapes) {
  const auto with_shape = [](std::string_view shape) {
    return refusal(safetensors_bytes(one_tensor("U8", shape, "[0,1]"), "x"));
  };
  EXPECT_TRUE(contains(with_shape("[-1]"), "got dimension -1"));
  EXPECT_TRUE(contains(with_shape("[1.0]"), "got dimension 1.0"));
  EXPECT_TRUE(contains(with_shape("[\"1\"]"), "got dimension \"1\""));
  EXPECT_TRUE(contains(with_shape("[[1]]"), "shape"));
  EXPECT_TRUE(contains(with_shape("[9223372036854775807]"), "got dimension 9223372036854775807"));
  EXPECT_TRUE(contains(with_shape("[18446744073709551615]"), "got dimension 18446744073709551615"));
  EXPECT_TRUE(contains(with_shape("[1,1,1,1,1,1,1,1,1]"), "got 9 dimensions, need at most 8"));
  EXPECT_TRUE(contains(with_shape("[1099511627776,1099511627776]"), "overflows"));
  EXPECT_TRUE(contains(with_shape("[0,1099511627776,1099511627776]"), "overflows"));
  EXPECT_TRUE(contains(with_shape("7"), "need an array"));
  EXPECT_TRUE(contains(with_shape("null"), "need an array"));
}

TEST(SafetensorsHeader, RefusesBadOffsets) {
  const auto with_offsets = [](std::string_view offsets) {
    return refusal(safetensors_bytes(one_tensor("F32", "[2]", offsets), std::string(8, 'x')));
  };
  EXPECT_TRUE(contains(with_offsets("[0,7]"), "got 7 bytes, but shape [2] of float32 needs 8"));
  EXPECT_TRUE(contains(refusal(safetensors_bytes(one_tensor("F32", "[1]", "[0,8]"), std::string(8, 'x'))),
                       "got 8 bytes, but shape [1] of float32 needs 4"));
  EXPECT_TRUE(contains(with_offsets("[8,0]"), "need begin <= end"));
  EXPECT_TRUE(contains(with_offsets("[0,9]"), "the file has 8 bytes of data"));
  EXPECT_TRUE(contains(with_offsets("[18446744073709551608,18446744073709551615]"), "the file has 8 bytes"));
  for (const char* offsets : {"[-8,0]", "[0]", "[0,4,8]", "[0,8.0]", "8", "{}"})
    EXPECT_TRUE(contains(with_offsets(offsets), "data_offsets"));
}

TEST(SafetensorsHeader, RefusesOverlapsHolesAndTrailingBytes) {
  const auto two = [](std::string_view a, std::string_view b, size_t data_size) {
    return refusal(safetensors_bytes(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                                                 R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                                                 a, b),
                                     std::string(data_size, 'x')));
  };
  EXPECT_TRUE(contains(two("[0,4]", "[3,7]", 7), "b begins at data byte 3, inside a, which ends at 4"));
  EXPECT_TRUE(contains(two("[0,4]", "[0,4]", 4), "inside a"));
  EXPECT_TRUE(contains(two("[0,4]", "[5,9]", 9), "a hole of 1 bytes"));
  EXPECT_TRUE(contains(two("[1,5]", "[5,9]", 9), "a begins at data byte 1, need 0"));
  EXPECT_TRUE(contains(two("[0,4]", "[4,8]", 9), "got 1 bytes after the last tensor"));
  EXPECT_TRUE(contains(refusal(safetensors_bytes("{}", "x")), "got 1 bytes after the last tensor"));
}

TEST(SafetensorsFile, EveryTruncationOfARealFileIsRefused) {
  const std::string bytes = safetensors_bytes(one_tensor("F32", "[2]", "[0,8]"), std::string(8, 'x'));
  EXPECT_NO_THROW(parse(bytes));
  for (size_t size = 0; size < bytes.size(); ++size) refusal(bytes.substr(0, size));
}

TEST(SafetensorsFile, ReadsTheBundledModel) {
  const SafetensorsFile file(bundled_model() / "model.safetensors");
  EXPECT_EQ(file.tensors().size(), 108u);
  const TensorView conv = file.view("model.layers.0.linear_attn.conv1d.weight");
  EXPECT_EQ(conv.dtype, DType::kBF16);
  EXPECT_EQ(conv.shape, (Shape{2 * 2 * 128 + 6 * 128, 1, 4}));
  EXPECT_TRUE(conv.is_dense());
  file.prefetch("model.embed_tokens.weight");
  const uint16_t before = file.view("model.embed_tokens.weight").as<bf16>()->bits;
  file.release("model.embed_tokens.weight");
  EXPECT_EQ(file.view("model.embed_tokens.weight").as<bf16>()->bits, before);  // read again from the file
}

TEST(SafetensorsFile, SurvivesAMove) {
  SafetensorsFile first(fixture("hybrid_r3_tied/model.safetensors"));
  const void* data = first.view("model.norm.weight").data;
  const SafetensorsFile second(std::move(first));
  EXPECT_EQ(second.view("model.norm.weight").data, data);
}

TEST(SafetensorsFile, NamesWhatIsMissing) {
  const TempDirectory directory;
  error_of(ErrorKind::kNotFound, [&] { SafetensorsFile(directory.path() / "absent.safetensors"); });
  error_of(ErrorKind::kInvalid, [&] { SafetensorsFile{directory.path()}; });
  error_of(ErrorKind::kInvalid, [&] { SafetensorsFile(directory.write("empty.safetensors", "")); });
  const SafetensorsFile file(fixture("hybrid_r3_tied/model.safetensors"));
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
  EXPECT_TRUE(contains(error_of(ErrorKind::kNotFound, [&] { (void)file.view("lm_head.weight"); }),
                       "\"lm_head.weight\""));
}

TEST(SafetensorsFile, FiveDimensionsHaveBytesButNoView) {
  const SafetensorsFile file(fixture("wrapped_multimodal/model.safetensors"));
  const std::string name = "model.visual.patch_embed.proj.weight";
  ASSERT_NE(file.find(name), nullptr);
  EXPECT_EQ(file.find(name)->dims.size(), 5u);
  EXPECT_EQ(file.bytes(name).size(), file.find(name)->size_bytes);
  EXPECT_TRUE(contains(error_of(ErrorKind::kUnsupported, [&] { (void)file.view(name); }),
                       "got 5 dimensions, need at most 4"));
}

TEST(SafetensorsFile, MisalignedDataIsCopiedOnce) {
  const float value = 1.25f;
  std::string header =
      R"({"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string data(5, '\0');
  std::memcpy(data.data() + 1, &value, sizeof value);
  const TempDirectory directory;
  const SafetensorsFile file(directory.write("m.safetensors", safetensors_bytes(header, data)));
  EXPECT_NE(reinterpret_cast<uintptr_t>(file.bytes("t").data()) % alignof(float), 0u);
  const TensorView view = file.view("t");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % alignof(float), 0u);
  EXPECT_EQ(*view.as<float>(), value);
  EXPECT_EQ(file.view("t").data, view.data);
}

TEST(WriteSafetensors, WhatIsWrittenIsRead) {
  std::array<uint8_t, 3> bytes = {1, 2, 3};
  std::array<float, 4> floats = {1.0f, -2.5f, 1e-30f, std::numeric_limits<float>::infinity()};
  std::array<int64_t, 1> big = {INT64_MIN};
  const std::vector<NamedTensor> tensors = {
      {"b", TensorView(bytes.data(), DType::kU8, {3})},
      {"f", TensorView(floats.data(), DType::kF32, {2, 2})},
      {"s", TensorView(big.data(), DType::kI64, {})},
      {"none", TensorView(nullptr, DType::kF16, {0, 5})},
  };
  const TempDirectory directory;
  const auto path = directory.path() / "out.safetensors";
  write_safetensors(path, tensors, {{"format", "pt"}, {"note", "quote \" and \n"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("note"), "quote \" and \n");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const TensorView view = file.view(tensor.name);
    EXPECT_EQ(view.dtype, tensor.view.dtype);
    EXPECT_EQ(view.shape, tensor.view.shape);
    EXPECT_EQ(view.data, file.bytes(tensor.name).data()) << tensor.name << " must lie aligned in the file";
    const std::string_view stored(static_cast<const char*>(view.data), view.size_bytes());
    EXPECT_EQ(stored, std::string_view(static_cast<const char*>(tensor.view.data), view.size_bytes()));
  }
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".partial"));
}

TEST(WriteSafetensors, RefusesRepeatedNamesAndUnwritablePlaces) {
  uint8_t byte = 0;
  const NamedTensor t{"t", TensorView(&byte, DType::kU8, {1})};
  const TempDirectory directory;
  error_of(ErrorKind::kInvalid, [&] {
    write_safetensors(directory.path() / "o.safetensors", std::vector{t, t});
  });
  error_of(ErrorKind::kEnvironment,
           [&] { write_safetensors(directory.path() / "no/o.safetensors", std::vector{t}); });
}

}  // namespace
}  // namespace longspan::io
