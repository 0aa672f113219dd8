// Program: which file a process runs, which build that is, and which libraries it has really loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace longspan::measure {

// The GNU build id of an ELF file, a hash of what the linker wrote: "a3f1...". Files without one get a hash
// of their bytes, "fnv1a:...". Empty where the file cannot be read.
std::string build_hash(const std::filesystem::path& path);

struct Library {
  std::string path;
  std::string version;    // from the name of the file that the path leads to: "2.6.3"; may be empty
  bool replaced = false;  // the file was removed or replaced on disk since it was loaded
};

struct Program {
  int64_t pid = 0;                 // 0: no such process, or it may not be read
  std::string path;                // of its file
  std::string hash;                // build_hash() of what runs, whatever lies at the path now
  bool replaced = false;           // the file it was started from is no longer the one at the path
  std::vector<Library> libraries;  // in the order of their addresses
};

// `process` is "self" or a number.
Program read_program(const std::filesystem::path& root, const std::string& process = "self");

}  // namespace longspan::measure
