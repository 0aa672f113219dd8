// No matrix units that this build knows.
#include "ops/device/kernels.h"

namespace longspan::ops::device {

bool attention_mma(const Context&, const Attention&) { return false; }
bool attention_decode_mma(const Context&, const Attention&, const Partials&) { return false; }

}  // namespace longspan::ops::device
