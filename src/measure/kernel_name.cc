#include "measure/kernel_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace longspan::measure {
namespace {

void remove_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at))
    text.erase(at, part.size());
}

}  // namespace

std::string kernel_name(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || demangled == nullptr) return symbol;
  std::string name = demangled.get();
  remove_all(name, "longspan::ops::device::");
  remove_all(name, "(anonymous namespace)::");
  // Ours are all "void run_kernel<KERNEL>(KERNEL)".
  constexpr std::string_view kOurs = "void run_kernel<";
  const size_t end = name.find(">(");
  if (name.starts_with(kOurs) && end != std::string::npos)
    name = name.substr(kOurs.size(), end - kOurs.size());
  if (name.ends_with(' ')) name.pop_back();
  return name;
}

}  // namespace longspan::measure
