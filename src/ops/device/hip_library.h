// Libraries of ROCm or DTK that are found when the program runs: nothing of them is there when it is built.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan::ops::device {

// Of the HIP runtime that this process has loaded; null when it has none.
void* hip_runtime_symbol();

// Canonical path of the file that holds `function`; "" when that is not known.
std::string file_of(void* function);

// names: separated by spaces, the best first. Beside the HIP runtime of this process, whose library goes with
// it; then as they are, for the loader to look for.
std::vector<std::string> hip_library_files(std::string_view names);

// Null where it does not load, and why in `reason`; no reason when there is no such file. What was opened
// stays.
void* open_hip_library(const std::string& file, std::string& reason);

}  // namespace longspan::ops::device
