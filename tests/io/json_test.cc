#include "io/json.h"

#include "io/files.h"

namespace longspan::io {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(ParseJson, KeepsSixtyFourBitIntegers) {
  const Json json =
      parse_json(R"({"a": 9223372036854775807, "b": -9223372036854775808, "c": 18446744073709551615})", "f");
  EXPECT_EQ(json["a"].get<int64_t>(), INT64_MAX);
  EXPECT_EQ(json["b"].get<int64_t>(), INT64_MIN);
  EXPECT_EQ(json["c"].get<uint64_t>(), UINT64_MAX);
}

TEST(ParseJson, RefusesDeepNesting) {
  EXPECT_NO_THROW(parse_json(nested(kMaxJsonDepth), "f"));
  const std::string message =
      error_of(ErrorKind::kInvalid, [] { parse_json(nested(kMaxJsonDepth + 1), "deep.json"); });
  EXPECT_TRUE(contains(message, "deep.json: nested 129 deep, need at most 128"));
}

TEST(ParseJson, AHugeDepthDoesNotExhaustTheStack) {
  error_of(ErrorKind::kInvalid, [] { parse_json(std::string(10'000'000, '['), "f"); });
}

TEST(ParseJson, RefusesRepeatedKeysOfOneObjectOnly) {
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": {"a": 1}})", "f"));
  const std::string message =
      error_of(ErrorKind::kInvalid, [] { parse_json(R"({"b": {"x": 1, "x": 1}})", "f"); });
  EXPECT_TRUE(contains(message, "f: key \"x\" appears twice"));
}

TEST(ParseJson, NamesTheFileOfASyntaxError) {
  for (const char* text : {"", "{", "{\"a\": }", "{} trailing", "\"\xff\"", "{\"a\": NaN}"})
    EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid, [&] { parse_json(text, "bad.json"); }),
                         "bad.json: not valid JSON"));
}

class Fields : public testing::Test {
 protected:
  const Json json_ = parse_json(
      R"({"n": 5, "big": 18446744073709551615, "minus": -1, "real": 0.5, "text": "abc", "yes": true, "none": null,
          "list": ["a", "b"], "mixed": ["a", 1], "ids": [3, 4], "id": 7, "object": {"inner": "x"}})",
      "config.json");
  const JsonObject object_{json_, "config.json"};
};

TEST_F(Fields, NullCountsAsAbsent) {
  EXPECT_FALSE(object_.find_integer("none", {0, 9}));
  EXPECT_FALSE(object_.find_string("missing"));
  EXPECT_TRUE(object_.contains("none"));
  EXPECT_FALSE(object_.contains("missing"));
}

TEST_F(Fields, IntegersAreBounded) {
  EXPECT_EQ(object_.integer("n", {5, 5}), 5);
  EXPECT_EQ(object_.integer("minus", {-1, 0}), -1);
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                [&] {
                                  object_.integer("n", {6, 9});
                                }),
                       "config.json: n: got 5, need an integer from 6 to 9"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                [&] {
                                  object_.integer("big", {0, INT64_MAX});
                                }),
                       "got 18446744073709551615"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid, [&] { object_.integer("minus", {0, 9}); }), "got -1"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                [&] {
                                  object_.integer("text", {0, 9});
                                }),
                       "got \"abc\""));
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid, [&] { object_.integer("real", {0, 9}); }), "got 0.5"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                [&] {
                                  object_.integer("missing", {0, 9});
                                }),
                       "missing: got nothing"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                [&] {
                                  object_.integer("none", {0, 9});
                                }),
                       "none: got null"));
}

TEST_F(Fields, NumbersTakeIntegersToo) {
  EXPECT_EQ(object_.find_number("real", {0, 1}), 0.5);
  EXPECT_EQ(object_.find_number("n", {0, 9}), 5.0);
  error_of(ErrorKind::kInvalid, [&] { (void)object_.find_number("n", {6, 9}); });
}

TEST_F(Fields, WrongTypesAreRefused) {
  error_of(ErrorKind::kInvalid, [&] { (void)object_.find_bool("n"); });
  error_of(ErrorKind::kInvalid, [&] { (void)object_.find_string("yes"); });
  error_of(ErrorKind::kInvalid, [&] { (void)object_.find_strings("mixed"); });
  error_of(ErrorKind::kInvalid, [&] { (void)object_.find_object("list"); });
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid, [&] { (void)object_.find_string("list"); }),
                       "got an array of 2 entries"));
}

TEST_F(Fields, TokenIdsComeAloneOrAsAList) {
  EXPECT_EQ(object_.find_token_ids("id"), std::vector<int32_t>{7});
  EXPECT_EQ(object_.find_token_ids("ids"), (std::vector<int32_t>{3, 4}));
  EXPECT_TRUE(object_.find_token_ids("none").empty());
  error_of(ErrorKind::kInvalid, [&] { object_.find_token_ids("minus"); });
  error_of(ErrorKind::kInvalid, [&] { object_.find_token_ids("mixed"); });
  error_of(ErrorKind::kInvalid, [&] { object_.find_token_ids("big"); });
}

TEST_F(Fields, InnerObjectsKnowTheirPlace) {
  EXPECT_EQ(object_.find_object("object")->where(), "config.json: object");
  EXPECT_TRUE(contains(error_of(ErrorKind::kInvalid,
                                [&] {
                                  object_.find_object("object")->integer("inner", {0, 1});
                                }),
                       "config.json: object: inner: got \"x\""));
}

TEST(ReadTextFile, TellsAMissingFileFromADirectory) {
  const TempDirectory directory;
  error_of(ErrorKind::kNotFound, [&] { read_text_file(directory.path() / "absent.json"); });
  error_of(ErrorKind::kInvalid, [&] { read_text_file(directory.path()); });
  EXPECT_EQ(read_text_file(directory.write("a.json", "{}\n")), "{}\n");
  EXPECT_EQ(read_text_file(directory.write("empty.json", "")), "");
}

}  // namespace
}  // namespace longspan::io
