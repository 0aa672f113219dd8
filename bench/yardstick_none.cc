#include "yardstick.h"

namespace longspan::bench {

DType yardstick_dtype() { return DType::kBF16; }

double yardstick_seconds(Index, Index, Index, size_t, double) { return 0; }

}  // namespace longspan::bench
