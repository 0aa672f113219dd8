// Any bytes through the tokenizer: no crash, nothing lost, and streaming says the same as decoding.
#include "text/tokenizer.h"

#include "../tests/text/small_tokenizer.h"
#include "core/error.h"
#include "text/detokenizer.h"
#include "text/nfc.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

Tokenizer make_tokenizer() {
  nlohmann::json document =
      small_tokenizer({{"a", "a"}, {"aa", "aa"}, {" ", "a"}, {"\xCC", "\x81"}, {"<", "|"}});
  document["added_tokens"] = {added_token(300, "<|end|>", /*special=*/true), added_token(301, "<t>"),
                              added_token(302, "<||"), added_token(303, "\u01D6")};
  document["added_tokens"][3]["normalized"] = true;
  return Tokenizer::parse(document.dump());
}

void check_policy(const Tokenizer& tokenizer, std::string_view text, SpecialTokens policy) {
  const std::vector<int32_t> ids = tokenizer.encode(text, policy);
  const std::string decoded = tokenizer.decode(ids, Decoding::kKeepSpecial);
  // Stretches are normalised one by one, so normalising the whole comes to the same only afterwards.
  CHECK(to_nfc(decoded) == to_nfc(text));
  if (to_nfc(text) == text) CHECK(decoded == text);
  if (policy == SpecialTokens::kAsText) {
    for (const int32_t id : ids) CHECK(!tokenizer.is_special(id));
  }
}

void check_stream(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<int32_t> ids;  // any bytes as ids: the first 256 tokens are the bytes
  for (const char byte : bytes) ids.push_back(static_cast<uint8_t>(byte) * (byte == '\x07' ? 43 : 1));
  for (const Decoding decoding : {Decoding::kKeepSpecial, Decoding::kSkipSpecial}) {
    Detokenizer detokenizer(tokenizer, decoding);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string part = detokenizer.push(id);
      CHECK(!find_invalid_utf8(part));
      streamed += part;
    }
    CHECK(streamed + detokenizer.finish() == tokenizer.decode(ids, decoding));
  }
}

void check(std::string_view bytes) {
  static const Tokenizer tokenizer = make_tokenizer();
  const std::string text = replace_invalid_utf8(bytes);
  for (const SpecialTokens policy : {SpecialTokens::kParse, SpecialTokens::kAsText}) {
    CHECK(tokenizer.encode(bytes, policy) == tokenizer.encode(text, policy));
    check_policy(tokenizer, text, policy);
  }
  check_stream(tokenizer, bytes);
}

}  // namespace
}  // namespace longspan::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  longspan::text::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
