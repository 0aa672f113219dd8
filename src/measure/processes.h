// Processes: who holds a card or listens on a port, from /proc. Of other users' processes only their names
// can be seen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace longspan::measure {

struct Process {
  int64_t pid = 0;
  std::string command;  // "longspan serve --model ..."; its first 120 bytes
};

struct DeviceHolder {
  Process process;
  std::string device;  // "/dev/kfd", "/dev/nvidia0", "/dev/dri/renderD128"
};

struct Listener {
  Process process;  // pid 0: somebody whose files may not be read
  int port = 0;
};

std::vector<int64_t> process_ids(const std::filesystem::path& root);  // ascending
Process process_of(const std::filesystem::path& root, int64_t pid);

// One entry a process and device file, by process.
std::vector<DeviceHolder> device_holders(const std::filesystem::path& root);
// Whoever listens on the TCP port in this network namespace.
std::optional<Listener> listener_on(const std::filesystem::path& root, int port);
// Processes whose file has that name ("longspan"), this one left out.
std::vector<int64_t> processes_named(const std::filesystem::path& root, const std::string& name,
                                     int64_t but_not);

}  // namespace longspan::measure
