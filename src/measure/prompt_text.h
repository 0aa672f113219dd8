// PromptText: built-in prose of an exact token length. The same (seed, round, index) is the same text on
// every machine. Each text opens with a line of its own, so that no two share a prefix: a prefix cache's hit
// would void every figure of prefill.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/token_counter.h"

namespace longspan::measure {

struct TextKey {
  uint64_t seed = 0;
  int round = 0;  // 0 is the measured one; the warm-up's texts differ from it
  std::string bucket;
  size_t index = 0;
};

class PromptText final {
 public:
  explicit PromptText(const TextKey& key);
  // The opening line and the first `num_words` words.
  std::string with_words(size_t num_words);

 private:
  const std::string head_;
  uint64_t state_;
  std::vector<std::string> words_;  // generated so far; full stops and line ends belong to their words
  void add_sentence();
};

// A text that the counter counts as exactly `num_tokens`. Throws kInvalid when the opening line and the
// template are longer than that, or when no filler word is one token.
std::string text_of_tokens(const TextKey& key, int64_t num_tokens, const TokenCounter& counter);
// About as long, where nothing counts: usage.prompt_tokens will tell.
std::string text_of_about(const TextKey& key, int64_t num_tokens);

}  // namespace longspan::measure
