#include "yardstick.h"

namespace longspan::bench {

double yardstick_seconds(Index, Index, Index, size_t, double) { return 0; }

}  // namespace longspan::bench
