// The device backend: CUDA, HIP or the emulator, whichever this build was made for.
#pragma once

#include <memory>

#include "ops/device/runtime.h"
#include "ops/ops.h"

namespace longspan::ops::device {

// Whether this build was made for a card, and which: "cuda", "hip", "emulator".
const char* vendor_name();

// Of that card, or what the emulator allows itself. Throws as make_backend().
size_t free_memory_bytes(int index);

// DeviceInfo::arch of that card; empty without one, and of the emulator.
std::string arch_of(int index);

struct BackendOptions {
  // Parts that the attention of one decoding sequence is cut into, at most, 1 .. kMaxDecodeSegments; 0: as
  // many as fill the card. Another number is another order of summation.
  int decode_segments = 0;
  // Of quantised weights: prompt rows have them unpacked once into a workspace that all layers share, of this
  // size at most (0: as the largest weight needs); else the fused product takes all rows, 16 at a time.
  bool dequant_prefill = true;
  size_t dequant_workspace_bytes = 0;
  int num_threads = 1;  // of the host, that pack weights; 0: all it may use
  // Room for an FP8 cache's K and V of one layer and sequence, which kVendorPrefill unpacks once a chunk:
  // unpacked_kv_bytes() of the longest; 0: its kernels read the codes.
  size_t unpacked_kv_bytes = 0;
};
inline constexpr int kMaxDecodeSegments = 256;

// Throws kEnvironment when there is no such device. index: of the card; the emulator's 0 has waves of 32
// lanes, its 1 of 64.
std::unique_ptr<Backend> make_backend(int index, const BackendOptions& options = {});

// What Backend::pack_quantized() of these parts will take there, or pack() of dense ones. Needs no device.
PackedBytes packed_bytes(std::span<const WeightPart> parts, DType dtype, const BackendOptions& options);

// page_bytes: of one layer's K and V in the products' dtype.
constexpr Index unpacked_kv_bytes(Index num_pages, Index page_bytes) {
  return num_pages * (page_bytes + static_cast<Index>(sizeof(int32_t)));
}

// The library that multiplies prompt rows on that device, with its file, or "none: <why>". Looks for it
// alone: nothing is put to the device. gemm_library.h has what a backend does with it.
std::string find_gemm_library(const DeviceInfo& device);

// The library that attends prompt rows in AttentionPath::kVendorPrefill, by its name and file, or "none:
// <why>". Looks for it alone.
std::string find_prefill_library();

// Whether that card has a kernel of its own for AttentionPath::kVendorPrefill (of kUnified's bits), for such
// caches; a call whose tensors are not aligned to 16 bytes runs kUnified's all the same, and so does one of
// several sequences or few rows whose cache is FP8. False without a card.
struct PrefillShape {
  DType dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;
  Index head_dim = 0;
  Index page_tokens = 0;
  Index num_q_heads = 0;  // libraries ask for these
  Index num_kv_heads = 0;
};
bool has_vendor_prefill(int index, const PrefillShape& shape);

// Whether a library takes kVendorPrefill there, which has bits of its own: obstacle is empty and name says
// which; else the condition that failed (prefill_library.h). Has it prove itself on the card.
struct PrefillLibraryChoice {
  std::string name;
  std::string obstacle;
};
PrefillLibraryChoice choose_prefill_library(int index, const PrefillShape& shape);

// Inside record() of a backend of make_backend(): kernels and copies that a replay will put to the device, so
// far. 0 of any other.
Index num_recorded(const Backend& backend);

// Reads a tensor's bytes once, 16 at a time, and does nothing with them: the limit of what a card can read.
// Its size is a multiple of 16. Of a backend of make_backend().
void read_memory(Backend& backend, const TensorView& view);

// Times every kernel of a backend of make_backend() from here on, in eager execution; a few microseconds
// each.
void start_profile(Backend& backend);
std::vector<KernelTime> finish_profile(Backend& backend);  // longest first

}  // namespace longspan::ops::device
