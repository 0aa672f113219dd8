#include "io/tensor_store.h"

#include <algorithm>

#include "io/files.h"
#include "io/json.h"

namespace longspan::io {
namespace {

constexpr std::string_view kIndex = "model.safetensors.index.json";

// A shard of one-byte tensors, the first holding `first`, the next one more.
std::string shard(const std::vector<std::string>& names, uint8_t first) {
  std::string header = "{", data;
  for (size_t i = 0; i < names.size(); ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i ? "," : "",
                          names[i], i, i + 1);
    data += static_cast<char>(first + i);
  }
  return safetensors_bytes(header + "}", data);
}

int value_of(const TensorStore& store, std::string_view name) { return *store.view(name).as<uint8_t>(); }

class ShardedModel : public testing::Test {
 protected:
  void SetUp() override {
    directory_.write("one.safetensors", shard({"a", "b"}, 10));
    directory_.write("two.safetensors", shard({"c"}, 20));
  }
  void write_index(std::string_view weight_map) {
    directory_.write(kIndex, fmt::format(R"({{"metadata":{{"total_size":3}},"weight_map":{}}})", weight_map));
  }
  std::string refusal(ErrorKind kind) {
    return error_of(kind, [&] { TensorStore{directory_.path()}; });
  }

  TempDirectory directory_;
};

TEST_F(ShardedModel, TheIndexJoinsShards) {
  write_index(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  const TensorStore store(directory_.path());
  EXPECT_EQ(store.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(value_of(store, "b"), 11);
  EXPECT_EQ(value_of(store, "c"), 20);
  EXPECT_EQ(store.info("c").file, "two.safetensors");
  EXPECT_FALSE(store.contains("d"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kNotFound, [&] { (void)store.info("d"); }), "no tensor \"d\""));
}

TEST_F(ShardedModel, AMissingShardIsNamedWithItsTensor) {
  write_index(R"({"a":"one.safetensors","c":"three.safetensors"})");
  const std::string message = refusal(ErrorKind::kNotFound);
  EXPECT_TRUE(contains(message, "names three.safetensors for tensor \"c\", but that file is missing"));
}

TEST_F(ShardedModel, ATensorThatItsShardLacksIsNamedWithTheShard) {
  write_index(R"({"a":"one.safetensors","x":"two.safetensors"})");
  EXPECT_TRUE(contains(refusal(ErrorKind::kNotFound),
                       "names two.safetensors for tensor \"x\", but that file does not hold it"));
}

TEST_F(ShardedModel, TensorsThatTheIndexForgetsAreUsed) {
  write_index(R"({"a":"one.safetensors","c":"two.safetensors"})");
  EXPECT_EQ(value_of(TensorStore(directory_.path()), "b"), 11);
}

TEST_F(ShardedModel, TheIndexDecidesBetweenTwoCopies) {
  directory_.write("two.safetensors", shard({"c", "a"}, 20));
  write_index(R"({"a":"two.safetensors","b":"one.safetensors"})");
  EXPECT_EQ(value_of(TensorStore(directory_.path()), "a"), 21);
}

TEST_F(ShardedModel, TwoCopiesWithoutAWordOfTheIndexAreRefused) {
  directory_.write("two.safetensors", shard({"c", "a"}, 20));
  write_index(R"({"b":"one.safetensors","c":"two.safetensors"})");
  const std::string message = refusal(ErrorKind::kInvalid);
  EXPECT_TRUE(contains(message, "\"a\""));
  EXPECT_TRUE(contains(message, "one.safetensors"));
  EXPECT_TRUE(contains(message, "two.safetensors"));
}

TEST_F(ShardedModel, ATruncatedShardIsNamed) {
  const std::string bytes = shard({"c"}, 20);
  directory_.write("two.safetensors", bytes.substr(0, bytes.size() - 1));
  write_index(R"({"a":"one.safetensors","c":"two.safetensors"})");
  const std::string message = refusal(ErrorKind::kInvalid);
  EXPECT_TRUE(contains(message, "two.safetensors"));
  EXPECT_TRUE(contains(message, "truncated?"));
}

TEST_F(ShardedModel, AnIndexCannotLeaveTheDirectory) {
  for (const char* file :
       {"../one.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "one.bin", "a\\\\b.safetensors"}) {
    write_index(fmt::format(R"({{"a":"{}"}})", file));
    EXPECT_TRUE(contains(refusal(ErrorKind::kInvalid), "weight_map: a:")) << file;
  }
}

TEST_F(ShardedModel, MalformedIndexesAreRefused) {
  for (const char* index :
       {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"}) {
    directory_.write(kIndex, index);
    refusal(ErrorKind::kInvalid);
  }
}

TEST_F(ShardedModel, WithoutAnIndexOnlyTheSingleFileCounts) {
  EXPECT_TRUE(
      contains(refusal(ErrorKind::kNotFound), "need model.safetensors or model.safetensors.index.json"));
  directory_.write("model.safetensors", shard({"m"}, 1));
  EXPECT_EQ(TensorStore(directory_.path()).names(), std::vector<std::string>{"m"});
}

TEST_F(ShardedModel, AFileMayBeOpenedDirectly) {
  EXPECT_EQ(TensorStore(directory_.path() / "two.safetensors").names(), std::vector<std::string>{"c"});
  error_of(ErrorKind::kNotFound, [&] { TensorStore(directory_.path() / "absent"); });
}

TEST(TensorStore, ReadsEveryShardOfTheFixture) {
  const TensorStore store(fixture("hybrid_r2_untied_sharded"));
  const Json index = parse_json(read_text_file(fixture("hybrid_r2_untied_sharded") / kIndex), kIndex);
  ASSERT_EQ(store.size(), index["weight_map"].size());
  EXPECT_EQ(store.files().size(), 3u);
  for (const std::string& name : store.names())
    EXPECT_EQ(store.info(name).file, index["weight_map"][name].get<std::string>());
}

}  // namespace
}  // namespace longspan::io
