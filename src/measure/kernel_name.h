// Names of kernels for people.
#pragma once

#include <string>

namespace longspan::measure {

// "DecodeKernel<bf16_t, 8>" of the symbol that a compiler makes of it; others' names demangled, else as they
// are.
std::string kernel_name(const std::string& symbol);

}  // namespace longspan::measure
