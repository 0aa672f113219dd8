// No Hopper in this build.
#include "ops/device/kernels.h"

namespace longspan::ops::device {

bool has_attention_wgmma(const DeviceInfo&, const PrefillShape&) { return false; }
bool attention_wgmma(const Context&, const Attention&) { return false; }

}  // namespace longspan::ops::device
