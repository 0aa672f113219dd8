// Tokens -> tree. Grammar and precedences are Jinja's.
#pragma once

#include "text/jinja/ast.h"

namespace longspan::text::jinja {

inline constexpr int kMaxNesting = 100;    // statements in statements, brackets in brackets
inline constexpr int kMaxExprDepth = 200;  // of one expression tree, chains such as a + b + c + ... included

// Throws Error "line N: ..." that names the construct. Unknown filters and tests are errors when they run,
// because templates guard optional ones with `if`.
Body parse(const Text& source);

}  // namespace longspan::text::jinja
