#include "ops/device/kernel_clock.h"
#include "ops/device/roctracer.h"

namespace longspan::ops::device {

std::unique_ptr<KernelClock> start_kernel_clock() { return roctracer::start_clock(roctracer::kLibraryNames); }

}  // namespace longspan::ops::device
