// No matrix units that this build knows.
#include "ops/device/kernels.h"

namespace longspan::ops::device {

bool gdn_mma(const Context&, const GatedDelta&) { return false; }

}  // namespace longspan::ops::device
