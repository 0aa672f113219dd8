// Environment: the facts of machine and program that a result depends on. Every saved measurement carries
// them, and doctor judges them. Reads only files below a root, so that tests bring a machine of their own.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "measure/machine.h"
#include "measure/program.h"
#include "ops/device/runtime.h"

namespace longspan::measure {

// Asking a card starts its driver, which takes part of a second and, on some, memory: not while something is
// timed.
enum class AskDevices : uint8_t { kNo, kYes };

struct Environment {
  std::string version;        // of this program
  std::string device_vendor;  // what this build was made for: "cuda", "hip", "emulator"
  Machine machine;
  ControlGroup group;  // this process's
  Program program;     // this process's
  std::vector<ops::device::DeviceInfo> devices;
  std::vector<std::string> products;  // of each device, ops::device::find_gemm_library
  std::string prompt_attention;       // ops::device::find_prefill_library
};

Environment read_environment(AskDevices ask, const std::filesystem::path& root = "/");
const char* program_version();  // "0.1.0"
int64_t now_unix_seconds();

// {version, program: {pid, path, hash, replaced, libraries: [{path, version, replaced}]}, machine: {cpu, isa,
// cpus, cores, usable_cpus, memory_bytes, available_bytes, swap_bytes, swap_used_bytes, numa_nodes, kernel,
// system, oom_kills_since_boot}, cgroup: {version, path, memory_limit_bytes, memory_bytes, cpu_limit,
// oom_events, oom_kills}, device_vendor, devices: [...]}; what is not known is null.
nlohmann::ordered_json to_json(const Environment& environment);
nlohmann::ordered_json to_json(const Program& program);

}  // namespace longspan::measure
