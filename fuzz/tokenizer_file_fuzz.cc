// Any bytes as tokenizer.json and tokenizer_config.json (split at the first NUL): an Error or a tokenizer
// that works.
#include <algorithm>

#include "../tests/text/small_tokenizer.h"
#include "core/error.h"
#include "text/tokenizer.h"

namespace longspan::text {
namespace {

void use(const Tokenizer& tokenizer) {
  try {
    for (const SpecialTokens policy : {SpecialTokens::kParse, SpecialTokens::kAsText}) {
      const auto ids = tokenizer.encode("Don't  <|im_end|> 123 \u0939\u093F\xFF\r\n <x> ab", policy);
      tokenizer.decode(ids, Decoding::kSkipSpecial);
    }
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::kExhausted);  // a pattern that runs away
  }
}

template <class Load>
void use_if_it_loads(Load&& load) {
  try {
    use(load());
  } catch (const Error&) {
  }
}

// Most random bytes are no JSON and most JSON lacks 256 bytes: graft the input onto a file that loads.
std::string grafted(std::string_view input) {
  static const nlohmann::json base = small_tokenizer({{"a", "b"}, {"ab", "c"}});
  nlohmann::json document = base;
  const nlohmann::json patch = nlohmann::json::parse(input, nullptr, /*allow_exceptions=*/false);
  if (!patch.is_discarded()) document.merge_patch(patch);
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void check(std::string_view input) {
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view tokenizer = input.substr(0, end);
  const std::string_view config = input.substr(std::min(end + 1, input.size()));
  use_if_it_loads([&] { return Tokenizer::parse(tokenizer, config); });
  use_if_it_loads([&] { return Tokenizer::parse(grafted(tokenizer), config); });
}

}  // namespace
}  // namespace longspan::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  longspan::text::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
