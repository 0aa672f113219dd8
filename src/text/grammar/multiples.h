// Multiples of a whole number within bounds, as a piece of a grammar: an automaton that carries the remainder
// from digit to digit.
#pragma once

#include "text/grammar/grammar.h"
#include "text/grammar/number_range.h"

namespace longspan::text {

inline constexpr int64_t kMaxDivisor = 1000;  // the automaton has a node for each remainder and digit

// The integers of the range that `divisor`, 1 to kMaxDivisor, divides, without leading zeros; then what
// `next` leads to. Throws kInvalid when the grammar grows too large.
NodeId add_multiples(GrammarBuilder& builder, int64_t divisor, const IntegerRange& range, NodeId next);

}  // namespace longspan::text
