#include "yardstick.h"

namespace longspan::bench {

double yardstick_seconds(Index, Index, Index, double) { return 0; }

}  // namespace longspan::bench
