#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"
#include "small_tokenizer.h"
#include "text/tokenizer.h"

namespace longspan::text {
namespace {

const ByteMerges kMerges{{"a", "b"}, {"ab", "c"}};

TokenizerFile parse_file(const nlohmann::json& document) {
  return parse_tokenizer_file(document.dump(), "tokenizer.json");
}

// What an error says about a small tokenizer.json after a change.
struct Refusal {
  ErrorKind kind;
  std::string message;
};
Refusal refusal(const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json document = small_tokenizer(kMerges);
  change(document);
  try {
    parse_file(document);
  } catch (const Error& error) {
    return {error.kind, error.what()};
  }
  ADD_FAILURE() << "accepted";
  return {};
}

#define EXPECT_REFUSED(expected_kind, text, change)                                         \
  do {                                                                                      \
    const Refusal got = refusal([](nlohmann::json& d) { change; });                         \
    EXPECT_EQ(got.kind, expected_kind);                                                     \
    EXPECT_NE(got.message.find("tokenizer.json: " text), std::string::npos) << got.message; \
  } while (false)

TEST(TokenizerFile, ReadsAllOfIt) {
  nlohmann::json document = small_tokenizer(kMerges);
  document["added_tokens"] = nlohmann::json::array({added_token(300, "<x>", /*special=*/true)});
  const TokenizerFile file = parse_file(document);
  EXPECT_TRUE(file.nfc);
  ASSERT_EQ(file.splits.size(), 1u);
  EXPECT_EQ(file.splits[0].pattern, kQwen35Pattern);
  EXPECT_EQ(file.splits[0].gaps, Gaps::kKeep);
  EXPECT_EQ(file.vocabulary.size(), 258u);
  ASSERT_EQ(file.merges.size(), 2u);
  EXPECT_EQ(file.merges[1].left, 256);
  EXPECT_EQ(file.merges[1].right, 'c');
  EXPECT_EQ(file.merges[1].merged, 257);
  EXPECT_EQ(file.whole_words, Bpe::WholeWords::kIfMerged);
  EXPECT_EQ(file.added_tokens, (std::vector<AddedToken>{{.id = 300, .content = "<x>", .special = true}}));
}

TEST(TokenizerFile, FormsThatMeanTheSame) {
  nlohmann::json document = small_tokenizer(kMerges);
  document["model"]["merges"] = {"a b", "ab c"};
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  document["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  document["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "ByteLevel"}}}}};
  document["model"]["ignore_merges"] = true;
  document.erase("added_tokens");
  const TokenizerFile file = parse_file(document);
  EXPECT_TRUE(file.nfc);
  EXPECT_EQ(file.merges[1].merged, 257);
  EXPECT_EQ(file.whole_words, Bpe::WholeWords::kAlways);
}

const nlohmann::json kText = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
const nlohmann::json kSpecialX = {{"SpecialToken", {{"id", "<x>"}, {"type_id", 0}}}};
nlohmann::json template_processing(std::vector<nlohmann::json> single) {
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"special_tokens", {{"<x>", {{"id", "<x>"}, {"ids", {300}}, {"tokens", {"<x>"}}}}}}};
}

TEST(TokenizerFile, ATemplatePutsTokensAroundAPrompt) {
  nlohmann::json document = small_tokenizer(kMerges);
  document["added_tokens"] = nlohmann::json::array({added_token(300, "<x>", /*special=*/true)});
  const auto ids_of = [&] { return Tokenizer::parse(document.dump()).encode_prompt("abc"); };
  EXPECT_EQ(ids_of(), (std::vector<int32_t>{257}));
  document["post_processor"] = template_processing({kSpecialX, kText});
  EXPECT_EQ(ids_of(), (std::vector<int32_t>{300, 257}));
  EXPECT_EQ(Tokenizer::parse(document.dump()).encode("abc", SpecialTokens::kParse),
            (std::vector<int32_t>{257}));
  const nlohmann::json byte_level = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  document["post_processor"] = {
      {"type", "Sequence"},
      {"processors", {byte_level, template_processing({kSpecialX, kSpecialX, kText, kSpecialX})}}};
  EXPECT_EQ(ids_of(), (std::vector<int32_t>{300, 300, 257, 300}));
  document["added_tokens"] = nlohmann::json::array();
  EXPECT_THROW(ids_of(), Error);  // 300 is no token then
}

TEST(TokenizerFile, OtherPreTokenizersWeRun) {
  nlohmann::json document = small_tokenizer(kMerges);
  document["normalizer"] = nullptr;
  nlohmann::json& split = document["pre_tokenizer"]["pretokenizers"][0];
  split["behavior"] = "Removed";
  split["invert"] = true;
  EXPECT_EQ(parse_file(document).splits[0].gaps, Gaps::kDrop);
  EXPECT_FALSE(parse_file(document).nfc);
  document["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  EXPECT_EQ(parse_file(document).splits.size(), 1u) << "the pattern of GPT-2";
}

TEST(TokenizerFile, MalformedFilesAreNamed) {
  constexpr auto kInvalid = ErrorKind::kInvalid;
  EXPECT_REFUSED(ErrorKind::kInvalid, "got no field 'model'", d.erase("model"));
  EXPECT_REFUSED(ErrorKind::kInvalid, "got no field 'pre_tokenizer'", d.erase("pre_tokenizer"));
  EXPECT_REFUSED(ErrorKind::kInvalid, "got no field 'decoder'", d.erase("decoder"));
  EXPECT_REFUSED(ErrorKind::kInvalid, "got an array", d = nlohmann::json::array());
  EXPECT_REFUSED(ErrorKind::kInvalid, "model: got 7, need an object", d["model"] = 7);
  EXPECT_REFUSED(ErrorKind::kInvalid, "model: got no field 'type'", d["model"].erase("type"));
  EXPECT_REFUSED(ErrorKind::kInvalid, "model: got no field 'merges'", d["model"].erase("merges"));
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.vocab: got an array",
                 d["model"]["vocab"] = nlohmann::json::array());
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.vocab.a: got \"x\"", d["model"]["vocab"]["a"] = "x");
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.vocab.a: got -1", d["model"]["vocab"]["a"] = -1);
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.vocab.a: got 1.5", d["model"]["vocab"]["a"] = 1.5);
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.vocab.b: got 97, need an id that 'a'",
                 d["model"]["vocab"]["b"] = 97);
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.vocab: got an object, need a token for every byte; 0x61",
                 d["model"]["vocab"].erase("a"));
  EXPECT_REFUSED(ErrorKind::kInvalid,
                 "model.merges[1]: got an array, need tokens of the vocabulary, which lacks 'zz'",
                 (d["model"]["merges"][1] = {"a", "zz"}));
  EXPECT_REFUSED(ErrorKind::kInvalid,
                 "model.merges[1]: got an array, need tokens of the vocabulary, which lacks 'ba'",
                 (d["model"]["merges"][1] = {"b", "a"}));
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.merges[0]: got \"ab\"", d["model"]["merges"][0] = "ab");
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.merges[0]: got \"a b c\"", d["model"]["merges"][0] = "a b c");
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.merges[0]: got null", d["model"]["merges"][0] = nullptr);
  EXPECT_REFUSED(ErrorKind::kInvalid, "model.ignore_merges: got 1, need true or false",
                 d["model"]["ignore_merges"] = 1);
  EXPECT_REFUSED(ErrorKind::kInvalid, "added_tokens[0].id: got 16777216",
                 d["added_tokens"] = nlohmann::json::array({added_token(1 << 24, "<x>")}));
  EXPECT_REFUSED(ErrorKind::kInvalid, "added_tokens[0]: got an object, need a token with content",
                 d["added_tokens"] = nlohmann::json::array({added_token(300, "")}));
  EXPECT_REFUSED(
      kInvalid, "added_tokens[1].id: got 300, need an id that '<x>'",
      (d["added_tokens"] = nlohmann::json::array({added_token(300, "<x>"), added_token(300, "<y>")})));
  EXPECT_REFUSED(
      kInvalid, "added_tokens[1].content: got \"<x>\"",
      (d["added_tokens"] = nlohmann::json::array({added_token(300, "<x>"), added_token(301, "<x>")})));
  EXPECT_REFUSED(ErrorKind::kInvalid, "added_tokens[0].id: got 300, need 256",
                 d["added_tokens"] = nlohmann::json::array({added_token(300, "ab")}));
  EXPECT_REFUSED(ErrorKind::kInvalid, "added_tokens[0].id: got 97",
                 d["added_tokens"] = nlohmann::json::array({added_token(97, "<x>")}));
}

TEST(TokenizerFile, WhatWeDoNotRunIsNamed) {
  constexpr auto kUnsupported = ErrorKind::kUnsupported;
  EXPECT_REFUSED(kUnsupported, "model.type: got \"Unigram\"", d["model"]["type"] = "Unigram");
  EXPECT_REFUSED(kUnsupported, "model.dropout: got 0.1", d["model"]["dropout"] = 0.1);
  EXPECT_REFUSED(kUnsupported, "model.end_of_word_suffix: got \"</w>\"",
                 d["model"]["end_of_word_suffix"] = "</w>");
  EXPECT_REFUSED(kUnsupported, "model.continuing_subword_prefix: got \"##\"",
                 d["model"]["continuing_subword_prefix"] = "##");
  EXPECT_REFUSED(kUnsupported, "normalizer.type: got \"NFKC\"", d["normalizer"]["type"] = "NFKC");
  EXPECT_REFUSED(kUnsupported, "pre_tokenizer.pretokenizers[0].type: got \"Digits\"",
                 d["pre_tokenizer"]["pretokenizers"][0]["type"] = "Digits");
  EXPECT_REFUSED(kUnsupported, "pre_tokenizer.pretokenizers[0].behavior: got \"MergedWithNext\"",
                 d["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext");
  EXPECT_REFUSED(kUnsupported, "pre_tokenizer.pretokenizers[0].pattern: got an object, need a Regex",
                 (d["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}}));
  EXPECT_REFUSED(kUnsupported, "pre_tokenizer.pretokenizers[1].add_prefix_space: got true",
                 d["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true);
  EXPECT_REFUSED(kUnsupported, "pre_tokenizer: got an object, need a ByteLevel",
                 d["pre_tokenizer"]["pretokenizers"].erase(1));
  EXPECT_REFUSED(kUnsupported, "decoder.type: got \"WordPiece\"", d["decoder"]["type"] = "WordPiece");
  EXPECT_REFUSED(kUnsupported, "post_processor.type: got \"RobertaProcessing\"",
                 (d["post_processor"] = {{"type", "RobertaProcessing"}}));
  EXPECT_REFUSED(ErrorKind::kInvalid, "post_processor: got no field 'single'",
                 (d["post_processor"] = {{"type", "TemplateProcessing"}}));
  EXPECT_REFUSED(kUnsupported, "post_processor.single: got an array, need one Sequence",
                 (d["post_processor"] = template_processing({kSpecialX})));
  EXPECT_REFUSED(kUnsupported, "post_processor.single[1]: got an object, need one Sequence",
                 (d["post_processor"] = template_processing({kText, kText})));
  EXPECT_REFUSED(ErrorKind::kInvalid, "post_processor: got no field 'special_tokens'",
                 (d["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {kSpecialX, kText}}}));
  EXPECT_REFUSED(ErrorKind::kInvalid, "post_processor.single[0]: got no field 'SpecialToken'",
                 (d["post_processor"] = template_processing({nlohmann::json::object(), kText})));
}

TEST(TokenizerFile, SyntaxErrorsSayWhere) {
  try {
    parse_tokenizer_file("{\"model\": \xFF", "dir/tokenizer.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("dir/tokenizer.json: got a syntax error at byte 11"),
              std::string::npos)
        << error.what();
  }
}

TEST(TokenizerFile, ABadPatternIsALoadError) {
  EXPECT_THROW(Tokenizer::parse(small_tokenizer(kMerges, "(").dump()), Error);
  EXPECT_THROW(Tokenizer::parse(small_tokenizer(kMerges, "\\w+").dump()), Error);
}

TEST(TokenizerConfig, NamedTokensAndTemplates) {
  const TokenizerConfig config = parse_tokenizer_config(R"({
      "eos_token": {"content": "<|im_end|>", "special": true}, "bos_token": null, "pad_token": "<pad>",
      "chat_template": "{{ x }}"})",
                                                        "tokenizer_config.json");
  EXPECT_EQ(config.eos_token, "<|im_end|>");
  EXPECT_EQ(config.bos_token, std::nullopt);
  EXPECT_EQ(config.pad_token, "<pad>");
  ASSERT_EQ(config.chat_templates.size(), 1u);
  EXPECT_EQ(config.chat_templates[0].name, "default");
  EXPECT_EQ(config.chat_templates[0].source, "{{ x }}");

  const TokenizerConfig list = parse_tokenizer_config(
      R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})",
      "tokenizer_config.json");
  ASSERT_EQ(list.chat_templates.size(), 2u);
  EXPECT_EQ(list.chat_templates[1].name, "tool_use");
  EXPECT_EQ(list.chat_templates[1].source, "b");
}

TEST(TokenizerConfig, MalformedFields) {
  for (const char* json : {R"([])", R"({"eos_token": 3})", R"({"eos_token": {}})", R"({"chat_template": 1})",
                           R"({"chat_template": [{"name": "x"}]})", R"({"added_tokens_decoder": []})",
                           R"({"added_tokens_decoder": {"x1": {"content": "<x>"}}})",
                           R"({"added_tokens_decoder": {"-1": {"content": "<x>"}}})",
                           R"({"added_tokens_decoder": {"99999999999": {"content": "<x>"}}})",
                           R"({"added_tokens_decoder": {"300": {"content": 1}}})",
                           R"({"added_tokens_decoder": {"300": {"content": "<x>", "special": "yes"}}})"}) {
    EXPECT_THROW(parse_tokenizer_config(json, "tokenizer_config.json"), Error) << json;
  }
}

}  // namespace
}  // namespace longspan::text
