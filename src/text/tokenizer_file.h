// tokenizer.json, read and checked: the one form we run is byte-level BPE behind NFC and regular expressions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/splitter.h"

namespace longspan::text {

struct TokenizerFile {
  struct Token {
    int32_t id;
    std::string bytes;
    bool is_mergeable;  // false: the spelling leaves the byte alphabet, so no text can lead there by merging
  };
  struct Split {
    std::string pattern;  // Oniguruma syntax
    Gaps gaps;
  };

  bool nfc = false;               // `normalizer`
  std::vector<Split> splits;      // `pre_tokenizer`, applied one behind the other
  std::vector<Token> vocabulary;  // `model`; holds all 256 single bytes
  std::vector<Merge> merges;
  Bpe::WholeWords whole_words = Bpe::WholeWords::kIfMerged;
  std::vector<int32_t> prompt_begin,
      prompt_end;                        // `post_processor`: ids around a text that is a whole prompt
  std::vector<AddedToken> added_tokens;  // unique ids and contents; an id of the vocabulary has its spelling
};

// Throws naming `file_name` and the field: kInvalid where the file is malformed, kUnsupported for a
// normalizer, pre-tokenizer, model, post-processor or decoder that we do not run. Padding and truncation are
// ignored.
TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view file_name);

}  // namespace longspan::text
