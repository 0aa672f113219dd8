// Cuts template source into tokens. White-space control happens here and nowhere else, with the settings that
// chat templates are written for: trim_blocks, lstrip_blocks, one trailing newline of the template dropped.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace longspan::text::jinja {

struct Token {
  enum class Kind : uint8_t {
    kData,        // literal text between tags; never empty
    kPrintBegin,  // {{
    kPrintEnd,    // }}
    kBlockBegin,  // {%
    kBlockEnd,    // %}
    kName,
    kString,  // text holds the decoded string
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  int line;  // 1-based
  Text text;
  int64_t integer = 0;
  double real = 0;

  bool is(Kind wanted, std::string_view spelling) const { return kind == wanted && text.view() == spelling; }
  bool is_name(std::string_view name) const { return is(Kind::kName, name); }
  bool is_operator(std::string_view op) const { return is(Kind::kOperator, op); }
};

// `source` is valid UTF-8 with "\n" line ends (see normalize_source). The last token is kEnd.
// Throws Error "line N: ..." for what is not a token, an open tag, string, comment or bracket.
std::vector<Token> lex(const Text& source);

// "\r\n" and "\r" become "\n"; one trailing newline is dropped; invalid UTF-8 becomes U+FFFD.
std::string normalize_source(std::string_view source);

}  // namespace longspan::text::jinja
