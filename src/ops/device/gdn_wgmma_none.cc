// No Hopper in this build.
#include "ops/device/gdn_mma.h"

namespace longspan::ops::device::gdn {

bool scan_cells_wgmma(const Context&, const GatedDelta&, const Batch&) { return false; }

}  // namespace longspan::ops::device::gdn
