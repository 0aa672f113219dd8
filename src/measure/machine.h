// Machine: processor, memory and kernel as the system describes them, and the control group that a process
// runs in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace longspan::measure {

struct NumaNode {
  int index = 0;
  std::string cpus;  // "0-15,32-47"
  size_t memory_bytes = 0;
};

struct Machine {
  std::string cpu_model;
  std::vector<std::string> isa;  // of those that change a kernel here: "avx2", "avx512_bf16", "amx_bf16", ...
  int num_cpus = 0;              // logical, of the machine
  int num_cores = 0;             // physical
  int num_usable_cpus = 0;       // that this process may run on
  size_t memory_bytes = 0;
  size_t available_bytes = 0;
  size_t swap_bytes = 0;
  size_t swap_used_bytes = 0;
  std::vector<NumaNode> nodes;
  std::string huge_pages;            // "always", "madvise", "never"; empty where not known
  std::string kernel;                // "6.1.0-18-amd64"
  std::string system;                // "Debian GNU/Linux 12 (bookworm)"
  int64_t oom_kills_since_boot = 0;  // of any process of the machine

  bool has(std::string_view feature) const;
};

Machine read_machine(const std::filesystem::path& root);

// Of one process. An absent limit is none. Versions 1 and 2 of the interface are read.
struct ControlGroup {
  int version = 0;                           // 0: none found
  std::string path;                          // "/system.slice/longspan.service"
  std::optional<size_t> memory_limit_bytes;  // the tightest up to the root
  std::optional<size_t> memory_bytes;        // in use, caches included
  std::optional<double> cpu_limit;           // processors' worth of time
  int64_t oom_events = 0;                    // the limit was hit and nothing could be reclaimed
  int64_t oom_kills = 0;                     // processes of this group killed for it
};

// `process` is "self" or a number.
ControlGroup read_control_group(const std::filesystem::path& root, const std::string& process = "self");

}  // namespace longspan::measure
