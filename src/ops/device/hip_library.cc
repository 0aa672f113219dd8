#include "ops/device/hip_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

namespace longspan::ops::device {

namespace fs = std::filesystem;

void* hip_runtime_symbol() { return ::dlsym(RTLD_DEFAULT, "hipMalloc"); }

std::string file_of(void* function) {
  Dl_info info{};
  if (::dladdr(function, &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code error;
  const fs::path real = fs::canonical(info.dli_fname, error);
  return error ? info.dli_fname : real.string();
}

std::vector<std::string> hip_library_files(std::string_view names) {
  void* const runtime = hip_runtime_symbol();
  const fs::path folder = runtime == nullptr ? fs::path() : fs::path(file_of(runtime)).parent_path();
  std::vector<std::string> beside, anywhere;
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    const std::string name(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
    if (!folder.empty()) beside.push_back((folder / name).string());
    anywhere.push_back(name);
  }
  beside.insert(beside.end(), anywhere.begin(), anywhere.end());
  return beside;
}

void* open_hip_library(const std::string& file, std::string& reason) {
  void* const loaded = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded != nullptr) return loaded;
  const char* const error = ::dlerror();
  const std::string absent = file + ": cannot open shared object file: No such file";
  reason = error == nullptr || std::string_view(error).starts_with(absent) ? "" : error;
  return nullptr;
}

}  // namespace longspan::ops::device
