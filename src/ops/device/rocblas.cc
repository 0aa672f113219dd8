#include "ops/device/rocblas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "ops/device/hip_library.h"

namespace longspan::ops::device::rocblas {
namespace {

namespace fs = std::filesystem;

template <class Fn>
bool find_symbol(void* library, const char* name, Fn& out) {
  out = reinterpret_cast<Fn>(::dlsym(library, name));
  return out != nullptr;
}

// Name of the first that is missing, or null.
const char* find_functions(void* library, Functions& out) {
  const auto has = [&](const char* name, auto& fn) { return find_symbol(library, name, fn); };
  if (!has("rocblas_create_handle", out.create_handle)) return "rocblas_create_handle";
  if (!has("rocblas_destroy_handle", out.destroy_handle)) return "rocblas_destroy_handle";
  if (!has("rocblas_set_stream", out.set_stream)) return "rocblas_set_stream";
  if (!has("rocblas_set_atomics_mode", out.set_atomics_mode)) return "rocblas_set_atomics_mode";
  if (!has("rocblas_gemm_ex", out.gemm_ex)) return "rocblas_gemm_ex";
  has("rocblas_gemm_ex_get_solutions", out.gemm_ex_get_solutions);
  has("rocblas_get_version_string", out.get_version_string);
  return nullptr;
}

bool holds_kernels(const fs::path& folder, std::string_view arch) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().find(arch) != std::string::npos) return true;
  return false;
}

// Empty when the library has files for arch, else what was missed. A folder of that name counts too.
std::string missing_kernels(const fs::path& library, std::string_view arch) {
  std::vector<fs::path> folders;
  if (const char* const named = std::getenv("ROCBLAS_TENSILE_LIBPATH"); named != nullptr && *named != 0)
    folders = {named};
  else
    for (const char* below : {"library", "rocblas/library", "../rocblas/library"})
      folders.push_back((library.parent_path() / below).lexically_normal());
  for (const fs::path& folder : folders)
    if (holds_kernels(folder, arch)) return "";
  return fmt::format("{} has no kernels for {} in {}", library.string(), arch,
                     folders.size() == 1 ? folders[0].string() : folders[1].string());
}

std::string version_of(const Functions& functions) {
  std::array<char, 256> text{};
  if (functions.get_version_string == nullptr ||
      functions.get_version_string(text.data(), text.size()) != Status::kSuccess)
    return "";
  return text.data();
}

// No reason where there is no such file.
Search try_file(const std::string& file, std::string_view arch) {
  Search search;
  void* const loaded = open_hip_library(file, search.reason);
  if (loaded == nullptr) return search;
  Library library;
  if (const char* const missing = find_functions(loaded, library.functions)) {
    search.reason = fmt::format("{} has no {}", file, missing);
    return search;
  }
  library.path = file_of(reinterpret_cast<void*>(library.functions.gemm_ex));
  if (::dlsym(loaded, "hipMalloc") != hip_runtime_symbol()) {
    search.reason = fmt::format("{} belongs to another HIP runtime than this program", library.path);
    return search;
  }
  search.reason = missing_kernels(library.path, arch);
  if (!search.reason.empty()) return search;
  library.version = version_of(library.functions);
  search.library = std::move(library);
  return search;
}

}  // namespace

Search find(std::string_view names, std::string_view arch) {
  Search best{.library = {}, .reason = fmt::format("found none of {}", names)};
  for (const std::string& file : hip_library_files(names)) {
    Search search = try_file(file, arch);
    if (search.library) return search;
    if (!search.reason.empty()) best.reason = std::move(search.reason);
  }
  return best;
}

}  // namespace longspan::ops::device::rocblas
