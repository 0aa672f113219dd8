#include "text/detokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace longspan::text {

std::string Detokenizer::push(int32_t id) {
  if (decoding_ == Decoding::kSkipSpecial && tokenizer_.is_special(id)) return {};
  std::string bytes = std::exchange(pending_, {});
  bytes += tokenizer_.token_bytes(id);
  const size_t complete = bytes.size() - incomplete_utf8_suffix(bytes);
  pending_ = bytes.substr(complete);
  bytes.resize(complete);
  return find_invalid_utf8(bytes) ? replace_invalid_utf8(bytes) : bytes;
}

std::string Detokenizer::finish() { return replace_invalid_utf8(std::exchange(pending_, {})); }

}  // namespace longspan::text
