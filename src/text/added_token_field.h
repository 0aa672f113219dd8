// Reads one added token of tokenizer.json or tokenizer_config.json. Internal to the readers of model files.
#pragma once

#include "text/added_tokens.h"
#include "text/json_field.h"

namespace longspan::text {

// Absent flags are false, but `normalized` is the opposite of `special`, as in the library that writes these
// files.
inline AddedToken read_added_token(const JsonField& field, int32_t id) {
  const bool special = field.flag("special", false);
  AddedToken token{
      .id = id,
      .content = field.required("content").string(),
      .special = special,
      .lstrip = field.flag("lstrip", false),
      .rstrip = field.flag("rstrip", false),
      .single_word = field.flag("single_word", false),
      .normalized = field.flag("normalized", !special),
  };
  if (token.content.empty()) field.invalid("a token with content");
  return token;
}

}  // namespace longspan::text
