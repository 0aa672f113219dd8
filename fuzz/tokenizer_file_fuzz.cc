// Any bytes as tokenizer.json and tokenizer_config.json (split at the first NUL): an Error or a tokenizer
// that works.
#include "../tests/text/small_tokenizer.h"
#include "core/error.h"
#include "text/tokenizer.h"

using namespace longspan::text;

namespace {

void use(const Tokenizer& tokenizer) {
  try {
    for (const SpecialTokens policy : {SpecialTokens::kParse, SpecialTokens::kAsText}) {
      const auto ids = tokenizer.encode("Don't  <|im_end|> 123 \u0939\u093F\xFF\r\n <x> ab", policy);
      tokenizer.decode(ids, Decoding::kSkipSpecial);
    }
  } catch (const longspan::Error& error) {
    CHECK(error.kind == longspan::ErrorKind::kExhausted);  // a pattern that runs away
  }
}

// Most random bytes are no JSON and most JSON lacks 256 bytes: graft the input onto a file that loads.
void parse_grafted(std::string_view input) {
  nlohmann::json patch = nlohmann::json::parse(input, nullptr, /*allow_exceptions=*/false);
  if (patch.is_discarded()) return;
  static const nlohmann::json base = small_tokenizer({{"a", "b"}, {"ab", "c"}});
  nlohmann::json document = base;
  document.merge_patch(patch);
  use(Tokenizer::parse(document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  const std::string_view config = end < size ? input.substr(end + 1) : std::string_view();
  try {
    parse_grafted(input.substr(0, end));
  } catch (const longspan::Error&) {
  }
  try {
    static const std::string base = small_tokenizer({{"a", "b"}}).dump();
    use(Tokenizer::parse(base, config));
  } catch (const longspan::Error&) {
  }
  try {
    use(Tokenizer::parse(input.substr(0, end), config));
  } catch (const longspan::Error&) {
  }
  return 0;
}
