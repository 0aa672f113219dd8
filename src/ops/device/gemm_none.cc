#include "ops/device/backend.h"
#include "ops/device/gemm_library.h"

namespace longspan::ops::device {

struct GemmLibrary::Impl {};

GemmLibrary::GemmLibrary(Device&) {}
GemmLibrary::~GemmLibrary() = default;
const char* GemmLibrary::name() const { return ""; }
bool GemmLibrary::matmul(const Matmul&) { return false; }

std::string find_gemm_library(const DeviceInfo&) { return "none: this build has none"; }

}  // namespace longspan::ops::device
