#include "measure/environment.h"

#include <nlohmann/json.hpp>

#include "ops/device/backend.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json machine_json(const Machine& machine) {
  Json nodes = Json::array();
  for (const NumaNode& node : machine.nodes)
    nodes.push_back({{"index", node.index}, {"cpus", node.cpus}, {"memory_bytes", node.memory_bytes}});
  return {{"cpu", machine.cpu_model},
          {"isa", machine.isa},
          {"cpus", machine.num_cpus},
          {"cores", machine.num_cores},
          {"usable_cpus", machine.num_usable_cpus},
          {"memory_bytes", machine.memory_bytes},
          {"available_bytes", machine.available_bytes},
          {"swap_bytes", machine.swap_bytes},
          {"swap_used_bytes", machine.swap_used_bytes},
          {"huge_pages", machine.huge_pages},
          {"numa_nodes", std::move(nodes)},
          {"kernel", machine.kernel},
          {"system", machine.system},
          {"oom_kills_since_boot", machine.oom_kills_since_boot}};
}

Json group_json(const ControlGroup& group) {
  return {{"version", group.version},
          {"path", group.path},
          {"memory_limit_bytes", or_null(group.memory_limit_bytes)},
          {"memory_bytes", or_null(group.memory_bytes)},
          {"cpu_limit", or_null(group.cpu_limit)},
          {"oom_events", group.oom_events},
          {"oom_kills", group.oom_kills}};
}

Json device_json(const ops::device::DeviceInfo& device) {
  return {{"index", device.index},
          {"name", device.name},
          {"arch", device.full_arch.empty() ? device.arch : device.full_arch},
          {"wave", device.wave},
          {"units", device.num_units},
          {"memory_bytes", device.memory_bytes},
          {"clock_mhz", device.clock_mhz},
          {"memory_clock_mhz", device.memory_clock_mhz},
          {"ecc", device.ecc},
          {"driver", device.driver},
          {"runtime", device.runtime}};
}

}  // namespace

int64_t now_unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

const char* program_version() { return LONGSPAN_VERSION; }

Environment read_environment(AskDevices ask, const std::filesystem::path& root) {
  Environment environment{.version = program_version(),
                          .device_vendor = ops::device::vendor_name(),
                          .machine = read_machine(root),
                          .group = read_control_group(root),
                          .program = read_program(root)};
  if (ask == AskDevices::kYes) environment.devices = ops::device::list_devices();
  for (const ops::device::DeviceInfo& device : environment.devices)
    environment.products.push_back(ops::device::find_gemm_library(device));
  if (!environment.devices.empty()) environment.prompt_attention = ops::device::find_prefill_library();
  return environment;
}

Json to_json(const Program& program) {
  Json libraries = Json::array();
  for (const Library& library : program.libraries)
    libraries.push_back(
        {{"path", library.path}, {"version", library.version}, {"replaced", library.replaced}});
  return {{"pid", program.pid},
          {"path", program.path},
          {"hash", program.hash},
          {"replaced", program.replaced},
          {"libraries", std::move(libraries)}};
}

Json to_json(const Environment& environment) {
  Json devices = Json::array();
  for (const ops::device::DeviceInfo& device : environment.devices) devices.push_back(device_json(device));
  return {{"version", environment.version},
          {"program", to_json(environment.program)},
          {"machine", machine_json(environment.machine)},
          {"cgroup", group_json(environment.group)},
          {"device_vendor", environment.device_vendor},
          {"devices", std::move(devices)}};
}

}  // namespace longspan::measure
