// A build with neither a card nor the emulator: everything says so.
#include "ops/device/backend.h"

namespace longspan::ops::device {

namespace {
[[noreturn]] void fail_none() {
  fail(ErrorKind::kEnvironment,
       "this build has no device: neither LONGSPAN_CUDA, LONGSPAN_HIP nor LONGSPAN_EMULATOR");
}
}  // namespace

const char* vendor_name() { return "none"; }
size_t free_memory_bytes(int) { fail_none(); }
std::unique_ptr<Backend> make_backend(int, const BackendOptions&) { fail_none(); }
std::string arch_of(int) { return ""; }
std::string find_gemm_library(const DeviceInfo&) { return "none: no device"; }
std::string find_prefill_library() { return "none: no device"; }
PrefillLibraryChoice choose_prefill_library(int, const PrefillShape&) { return {"", "library: no device"}; }
bool has_vendor_prefill(int, const PrefillShape&) { return false; }
Index num_recorded(const Backend&) { return 0; }
void read_memory(Backend&, const TensorView&) { fail_none(); }
void start_profile(Backend&) { fail_none(); }
std::vector<KernelTime> finish_profile(Backend&) { fail_none(); }
std::string describe_devices() { return "no device: a build for the CPU alone"; }
std::vector<DeviceInfo> list_devices() { return {}; }

}  // namespace longspan::ops::device
