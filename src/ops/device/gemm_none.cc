#include "ops/device/gemm_library.h"

namespace longspan::ops::device {

struct GemmLibrary::Impl {};

GemmLibrary::GemmLibrary(Device&) {}
GemmLibrary::~GemmLibrary() = default;
const char* GemmLibrary::name() const { return ""; }
bool GemmLibrary::matmul(const Matmul&) { return false; }

}  // namespace longspan::ops::device
