// Masks over a vocabulary: what is allowed is exactly what fits, and whoever chooses among it, always finds
// an end that fits.
#include "text/grammar/constrained_answer.h"

#include <gtest/gtest.h>
#include <ctime>

#include "core/error.h"
#include "text/grammar/json_validator.h"
#include "text/grammar/random_text.h"
#include "text/grammar/tool_call_grammar.h"
#include "text/small_tokenizer.h"

namespace longspan::testing {
namespace {

using text::ConstrainedAnswer;
using text::Grammar;
using text::Tokenizer;
using text::TokenMasks;
using text::TokenTrie;

// Every byte, some tokens that go over the borders of JSON's tokens, and added ones.
const Tokenizer& small() {
  static const Tokenizer tokenizer = [] {
    text::ByteMerges merges;
    for (const char* token :
         {"\",",  "\":", "{\"",  "\"}", "}]",  "[[", "]]",  "ab", "tr",  "\xC3\xA9", "\xE6\x97",
          "\"\"", "\\u", "\\\"", "10",  ">\n", "  ", "\n ", "</", "e\"", "1,",       "</t"})
      merges.emplace_back(std::string(token, 1), std::string(token + 1));
    nlohmann::json file = text::small_tokenizer({});
    auto& vocabulary = file["model"]["vocab"];
    int id = 256;
    for (const auto& [left, right] : merges) vocabulary[text::spelling_of_bytes(left + right)] = id++;
    file["added_tokens"] = {text::added_token(300, "<|im_end|>", /*special=*/true),
                            text::added_token(301, "<tool_call>"), text::added_token(302, "</tool_call>"),
                            text::added_token(303, "</think>")};
    return Tokenizer::parse(file.dump());
  }();
  return tokenizer;
}
constexpr int32_t kEnd = 300;
constexpr int32_t kVocab = 320;  // of the model: more rows than tokens

std::shared_ptr<TokenMasks> masks_of(Grammar grammar, const Tokenizer& tokenizer = small()) {
  return std::make_shared<TokenMasks>(std::make_shared<const Grammar>(std::move(grammar)),
                                      std::make_shared<const TokenTrie>(tokenizer));
}

bool has(std::span<const uint64_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
}

std::vector<int32_t> tokens_of(std::span<const uint64_t> mask) {
  std::vector<int32_t> tokens;
  for (int32_t token = 0; token < kVocab; ++token)
    if (has(mask, token)) tokens.push_back(token);
  return tokens;
}

// The slow twin: feeds each token's bytes to the grammar from the start.
bool begins(const Grammar& grammar, const std::string& text) {
  text::GrammarRunner runner(grammar);
  text::ThreadSet here, after;
  runner.enter(grammar.start(), here);
  for (const char c : text) {
    runner.step(here, static_cast<uint8_t>(c), after);
    std::swap(here, after);
  }
  return !here.empty();
}

const char* const kSchemas[] = {
    "true",
    R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}}, "required": ["a"]})",
    R"({"type": "string", "minLength": 1, "maxLength": 3})",
    R"({"type": "array", "items": {"$ref": "#"}})",
    R"({"anyOf": [{"type": "object", "properties": {"ab": {"type": "integer"}}}, {"type": "object", "properties": {"abc": {"type": "string", "pattern": "^[^x]*$"}}}]})",
    R"({"enum": ["ab", "abc", "trtr", 10, 101]})",
};

TEST(TokenMasks, AllowExactlyTheTokensThatFit) {
  Random random(1);
  for (const char* schema : kSchemas) {
    const Grammar grammar = text::json_schema_grammar(Json::parse(schema));
    for (int i = 0; i < 6; ++i) {
      ConstrainedAnswer answer(masks_of(grammar), {kEnd}, kVocab, /*in_reasoning=*/false);
      std::string text;
      for (int step = 0; step < 30; ++step) {
        const auto mask = answer.allowed();
        for (int32_t token = 0; token < small().vocab_size(); ++token) {
          const std::string bytes(small().token_bytes(token));
          const bool plain = !bytes.empty() && !small().is_added(token);
          const bool want = token == kEnd ? matches(grammar, text) : plain && begins(grammar, text + bytes);
          ASSERT_EQ(has(mask, token), want) << schema << "\n"
                                            << text << "\n"
                                            << token << " '" << bytes << "'";
        }
        const std::vector<int32_t> tokens = tokens_of(mask);
        ASSERT_FALSE(tokens.empty());
        const int32_t chosen = tokens[random() % tokens.size()];
        if (chosen == kEnd) break;
        answer.push(chosen);
        text += small().token_bytes(chosen);
      }
    }
  }
}

// Chooses among the allowed tokens, and the end as soon as it is one of them once `size` tokens came.
std::string random_answer(ConstrainedAnswer& answer, Random& random, int size, const Tokenizer& tokenizer) {
  std::string text;
  for (int step = 0; step < 4000; ++step) {
    const auto mask = answer.allowed();
    std::vector<int32_t> tokens = tokens_of(mask);
    EXPECT_FALSE(tokens.empty()) << text;
    if (tokens.empty()) return text;
    int32_t chosen = tokens[random() % tokens.size()];
    for (const int32_t closing : std::initializer_list<int32_t>{']', '}', '"', kEnd})
      if (step >= size && has(mask, closing)) chosen = closing;
    if (chosen == kEnd) return text;
    answer.push(chosen);
    text += tokenizer.token_bytes(chosen);
  }
  return "";
}

TEST(ConstrainedAnswer, AlwaysEndsAsAValueOfItsSchema) {
  Random random(2);
  for (const char* source : kSchemas) {
    const Json schema = Json::parse(source);
    const auto masks = masks_of(text::json_schema_grammar(schema));
    int count = 0;
    for (int i = 0; i < 40; ++i) {
      ConstrainedAnswer answer(masks, {kEnd}, kVocab, /*in_reasoning=*/false);
      const std::string text = random_answer(answer, random, static_cast<int>(random() % 40), small());
      if (text.empty()) continue;
      ++count;
      ASSERT_TRUE(Json::accept(text)) << source << "\n" << text;
      EXPECT_TRUE(JsonValidator(schema).fits(Json::parse(text))) << source << "\n" << text;
    }
    EXPECT_GT(count, 30) << source;
  }
}

TEST(ConstrainedAnswer, TheGrammarBeginsBehindTheReasoning) {
  const auto masks = masks_of(text::json_schema_grammar(Json::parse(R"({"type": "object"})")));
  ConstrainedAnswer answer(masks, {kEnd}, kVocab, /*in_reasoning=*/true);
  const auto push = [&](const std::string& text) {
    for (const char c : text) answer.push(static_cast<uint8_t>(c));
  };
  push("Well {");
  EXPECT_TRUE(has(answer.allowed(), 'x'));
  EXPECT_TRUE(has(answer.allowed(), 303));  // </think>
  EXPECT_FALSE(has(answer.allowed(), kEnd));
  EXPECT_FALSE(has(answer.allowed(), 301));  // <tool_call>
  answer.push(303);
  EXPECT_TRUE(has(answer.allowed(), '\n'));
  EXPECT_TRUE(has(answer.allowed(), '{'));
  EXPECT_FALSE(has(answer.allowed(), 'x'));
  push("\n\n");
  EXPECT_FALSE(has(answer.allowed(), '\n'));
  push("{}");
  EXPECT_EQ(tokens_of(answer.allowed()), std::vector<int32_t>{kEnd});
  answer.push(kEnd);
  EXPECT_EQ(tokens_of(answer.allowed()), std::vector<int32_t>{kEnd});
}

TEST(ConstrainedAnswer, ReasoningMayEndInThePiecesOfItsTag) {
  const auto masks = masks_of(text::json_schema_grammar(Json::parse(R"({"type": "integer"})")));
  ConstrainedAnswer answer(masks, {kEnd}, kVocab, /*in_reasoning=*/true);
  for (const char c : std::string("a</think")) answer.push(static_cast<uint8_t>(c));
  EXPECT_TRUE(has(answer.allowed(), '>'));
  EXPECT_TRUE(has(answer.allowed(), *small().find(">\n")));
  answer.push(*small().find(">\n"));
  EXPECT_TRUE(has(answer.allowed(), '1'));
  EXPECT_FALSE(has(answer.allowed(), 'a'));
}

TEST(ConstrainedAnswer, MarkupComesWhereTheGrammarSpellsItOut) {
  const Json tools = Json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}, "required": ["s"]}}}])");
  const auto masks = masks_of(text::tool_call_grammar(tools, text::CallCount::kOne));
  ConstrainedAnswer answer(masks, {kEnd}, kVocab, /*in_reasoning=*/false);
  EXPECT_EQ(tokens_of(answer.allowed()), (std::vector<int32_t>{'<', 301}));
  answer.push(301);
  for (const char c : std::string("\n<function=f>\n<parameter=s>\nx")) answer.push(static_cast<uint8_t>(c));
  for (const int32_t token : {301, 302, 303}) EXPECT_FALSE(has(answer.allowed(), token)) << token;
  for (const char c : std::string("\n</parameter>\n</function>\n")) answer.push(static_cast<uint8_t>(c));
  EXPECT_TRUE(has(answer.allowed(), 302));
  answer.push(302);
  EXPECT_EQ(tokens_of(answer.allowed()), std::vector<int32_t>{kEnd});
}

// A vocabulary of Qwen's size: words, of which one in fifty holds a piece of JSON or another script.
Tokenizer large_tokenizer() {
  Random random(4);
  nlohmann::json file = text::small_tokenizer({});
  auto& vocabulary = file["model"]["vocab"];
  const std::string letters = "etaoinshrdlcumwfgypbvk0123456789";
  const std::vector<std::string> other = {
      "\"", "\",",          "\":",          "}",        "{", "_", "-", "\n",
      "  ", "\xE6\x97\xA5", "\xE4\xB8\xAD", "\xD0\xB0", "(", "."};
  for (int id = 256; id < 248'000;) {
    std::string token = random() % 2 == 0 ? " " : "";
    for (size_t size = 2 + random() % 8; size > 0; --size)
      token += random() % 50 != 0 ? std::string(1, letters[random() % letters.size()])
                                  : other[random() % other.size()];
    if (vocabulary.emplace(text::spelling_of_bytes(token), id).second) ++id;
  }
  return Tokenizer::parse(file.dump());
}

// Processor time of this thread: others may be busy.
double thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// One token of the mask, drawn where the draw happens to fall.
int32_t any_of(std::span<const uint64_t> mask, Random& random, int32_t vocab_size) {
  const auto start = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  for (int32_t i = 0; i < vocab_size; ++i)
    if (has(mask, (start + i) % vocab_size)) return (start + i) % vocab_size;
  return -1;
}

// How long the one who samples waits for a mask; shown, because it depends on the machine.
TEST(ConstrainedAnswer, CostOverALargeVocabulary) {
  const Tokenizer tokenizer = large_tokenizer();
  double began = thread_ms();
  const auto trie = std::make_shared<const TokenTrie>(tokenizer);
  fmt::print("vocabulary of {}: trie of {} nodes in {:.1f} ms\n", tokenizer.vocab_size(),
             trie->nodes().size(), thread_ms() - began);
  const auto of_schema = [](const char* schema) { return text::json_schema_grammar(Json::parse(schema)); };
  // Alternatives that cannot be told apart, in each other: 4, 16, 64, ... readings of one text.
  const char* alike = R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "string"},
      {"properties": {"x": {"$ref": "#/$defs/a"}, "s": {"type": "string"}}},
      {"properties": {"x": {"$ref": "#/$defs/a"}, "t": {"type": "string"}}},
      {"properties": {"x": {"$ref": "#/$defs/a"}, "u": {"type": "string"}}},
      {"properties": {"x": {"$ref": "#/$defs/a"}, "v": {"type": "string"}}}]}}})";
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "o": {"type": "object"}}, "required": ["s", "o"]}}}])");
  struct Case {
    const char* name;
    Grammar grammar;
    std::string begin = "";  // of each answer
  };
  const Case cases[] = {
      {"any object", text::json_object_grammar()},
      {"object of strings",
       of_schema(
           R"({"properties": {"name": {"type": "string"}, "text": {"type": "string"}}, "required": ["name", "text"]})")},
      {"string of 100", of_schema(R"({"type": "string", "maxLength": 100})")},
      {"pattern", of_schema(R"({"type": "string", "pattern": "^[^x]{1,40}$"})")},
      {"alike", of_schema(alike), R"({"x":{"x":{"x":{"x":{"s":"a)"},
      {"call", text::tool_call_grammar(tools, text::CallCount::kOneOrMore)}};
  Random random(5);
  for (const auto& [name, grammar, begin] : cases) {
    began = thread_ms();
    const auto masks = std::make_shared<TokenMasks>(std::make_shared<const Grammar>(grammar), trie);
    const double made_ms = thread_ms() - began;
    std::vector<double> ms;
    for (int i = 0; i < 8; ++i) {
      ConstrainedAnswer answer(masks, {0}, tokenizer.vocab_size(), /*in_reasoning=*/false);
      for (const char c : begin) answer.push(static_cast<uint8_t>(c));
      for (int step = 0; step < 30; ++step) {
        began = thread_ms();
        const auto mask = answer.allowed();
        ms.push_back(thread_ms() - began);
        const int32_t token = any_of(mask, random, tokenizer.vocab_size());
        ASSERT_GE(token, 0);
        if (token == 0) break;
        answer.push(token);
      }
    }
    std::sort(ms.begin(), ms.end());
    fmt::print("  {:18}: made in {:6.1f} ms; a mask {:7.3f} ms in the median, {:7.3f} ms at worst\n", name,
               made_ms, ms[ms.size() / 2], ms.back());
    // Readings that multiply with each character would take hours; a sanitizer on a busy machine, half a
    // second.
    EXPECT_LT(ms.back(), 20'000) << name;
  }
}

}  // namespace
}  // namespace longspan::testing
