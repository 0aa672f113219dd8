// Detokenizer: the text of a growing answer, token by token, never half a character.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace longspan::text {

// One answer. Not thread-safe. Borrows the tokenizer.
//
// The strings of all push() calls and of finish() together are tokenizer.decode() of all ids, however they
// are cut, and each is valid UTF-8. At most three bytes are held back: those that may still become a
// character.
class Detokenizer final {
 public:
  Detokenizer(const Tokenizer& tokenizer, Decoding decoding) : tokenizer_(tokenizer), decoding_(decoding) {}

  // The text that this token completes; often empty in scripts whose characters are several tokens.
  std::string push(int32_t id);
  // The rest: U+FFFD when the answer ends inside a character. The detokenizer is then as new.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  Decoding decoding_;
  std::string pending_;  // bytes of an incomplete character
};

}  // namespace longspan::text
