// No library for prompt attention in this build.
#include "ops/device/prefill_library.h"

namespace longspan::ops::device {

struct PrefillLibrary::Impl {};

PrefillLibrary::PrefillLibrary(Device&) {}
PrefillLibrary::~PrefillLibrary() = default;
std::string PrefillLibrary::obstacle(const PrefillShape&) { return "library: this build looks for none"; }
std::string PrefillLibrary::name() const { return ""; }
bool PrefillLibrary::attention(const Attention&) { return false; }

std::string find_prefill_library() { return "none: this build looks for none"; }

}  // namespace longspan::ops::device
