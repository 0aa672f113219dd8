// Regular expressions of JSON schemas (the common part of ECMA 262) as pieces of a grammar: parsed, turned
// into a deterministic automaton over bytes, and added to a builder.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"

namespace longspan::text {

struct CharRange {
  char32_t low;
  char32_t high;  // inclusive
};

struct Regex {
  enum class Kind : uint8_t { kSequence, kChoice, kChars, kRepeat };
  static constexpr int32_t kUnlimited = INT32_MAX;

  Kind kind = Kind::kSequence;
  std::vector<Regex> parts = {};      // of kRepeat: one
  std::vector<CharRange> chars = {};  // of kChars: sorted, disjoint, without surrogates
  int32_t min = 0;                    // of kRepeat
  int32_t max = 0;
};

// How the characters of a matching text are written.
enum class Spelling : uint8_t {
  kPlain,       // as they are
  kJsonString,  // between the quotes of a JSON string: escaped where JSON wants it, and only there
  kJsonInCall,  // the same, without '<'
  kBareInCall,  // as the bare value of a tool's parameter: without '<' and control characters
};

// Knows: alternatives, groups, classes, \d \w \s \D \W \S, '.', the usual escapes, greedy and lazy
// quantifiers, ^ and $ at the ends of the outermost alternatives. Without ^ or $ anything may stand there.
// Throws kUnsupported for look-around, back references, \b and \p; kInvalid for what is no expression.
Regex parse_regex(std::string_view pattern);

// The texts that match, then `terminator`, then what `next` leads to. Texts that the spelling cannot write
// are left out. Throws kInvalid when the automaton is too large.
NodeId add_regex(GrammarBuilder& builder, const Regex& regex, Spelling spelling, std::string_view terminator,
                 NodeId next);

}  // namespace longspan::text
