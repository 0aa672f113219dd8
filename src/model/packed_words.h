// Four-bit codes in int32 words, as the published layouts store them (MODEL 4.1 to 4.3).
#pragma once

#include "core/tensor.h"

namespace longspan::model {

inline constexpr Index kPerWord = 8;  // codes of one word
// Bits below the code of column c of an AWQ word: 4 * [0, 4, 1, 5, 2, 6, 3, 7][c]. The other layouts: 4 * c.
inline constexpr int kAwqShift[kPerWord] = {0, 16, 4, 20, 8, 24, 12, 28};

constexpr Index words_for(Index count) { return (count + kPerWord - 1) / kPerWord; }

}  // namespace longspan::model
