#include "measure/machine.h"

#include <algorithm>
#include <array>
#include <set>

#include "measure/system_file.h"

namespace longspan::measure {

namespace fs = std::filesystem;

namespace {

// Features that a kernel of this program asks for, as the kernel of the system spells them.
constexpr std::array<std::string_view, 18> kFeatures = {
    "avx2",        "fma",         "f16c",     "avx512f",  "avx512bw", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16",
    "asimd",       "asimdhp",     "bf16",     "i8mm",     "sve",      "sve2"};

size_t kilobytes(std::string_view meminfo, std::string_view name) {
  const auto text = value_after(meminfo, name);
  return text ? static_cast<size_t>(integer_of(*text).value_or(0)) * 1024 : 0;
}

// "0-3,8" has 5.
int count_cpus(std::string_view list) {
  int count = 0;
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    const std::string_view range = list.substr(0, end);
    const size_t dash = range.find('-');
    const auto first = integer_of(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : integer_of(range.substr(dash + 1));
    if (first && last && *last >= *first) count += static_cast<int>(*last - *first + 1);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return count;
}

void read_cpus(const fs::path& root, Machine& machine) {
  const std::string info = read_system_file_or_empty(below(root, "proc/cpuinfo"));
  std::set<std::pair<std::string, std::string>> cores;
  std::string package;
  for (const std::string_view line : lines_of(info)) {
    const auto value = [&] {
      return std::string(trimmed(line.substr(std::min(line.find(':') + 1, line.size()))));
    };
    if (line.starts_with("processor")) ++machine.num_cpus;
    if (line.starts_with("physical id")) package = value();
    if (line.starts_with("core id")) cores.emplace(package, value());
  }
  machine.num_cores = cores.empty() ? machine.num_cpus : static_cast<int>(cores.size());
  machine.cpu_model = value_after(info, "model name").value_or(value_after(info, "CPU part").value_or(""));
  const auto flags =
      words_of(value_after(info, "flags").value_or(value_after(info, "Features").value_or("")));
  for (const std::string_view feature : kFeatures)
    if (std::ranges::find(flags, feature) != flags.end()) machine.isa.emplace_back(feature);
  const std::string status = read_system_file_or_empty(below(root, "proc/self/status"));
  machine.num_usable_cpus = count_cpus(value_after(status, "Cpus_allowed_list").value_or(""));
  if (machine.num_usable_cpus == 0) machine.num_usable_cpus = machine.num_cpus;
}

void read_memory(const fs::path& root, Machine& machine) {
  const std::string info = read_system_file_or_empty(below(root, "proc/meminfo"));
  machine.memory_bytes = kilobytes(info, "MemTotal");
  machine.available_bytes = kilobytes(info, "MemAvailable");
  machine.swap_bytes = kilobytes(info, "SwapTotal");
  machine.swap_used_bytes = machine.swap_bytes - std::min(machine.swap_bytes, kilobytes(info, "SwapFree"));
  // "always [madvise] never": the one in brackets holds.
  const std::string pages =
      read_system_file_or_empty(below(root, "sys/kernel/mm/transparent_hugepage/enabled"));
  const size_t open = pages.find('[');
  const size_t close = pages.find(']');
  if (open != std::string::npos && close != std::string::npos && close > open)
    machine.huge_pages = pages.substr(open + 1, close - open - 1);
}

std::vector<NumaNode> read_nodes(const fs::path& root) {
  std::vector<NumaNode> nodes;
  for (int index = 0; index < 1024; ++index) {
    const fs::path folder = below(root, "sys/devices/system/node/node" + std::to_string(index));
    if (!fs::is_directory(folder)) continue;
    const std::string info = read_system_file_or_empty(folder / "meminfo");
    nodes.push_back({.index = index,
                     .cpus = read_system_file_or_empty(folder / "cpulist"),
                     .memory_bytes = kilobytes(info, "Node " + std::to_string(index) + " MemTotal")});
  }
  return nodes;
}

}  // namespace

bool Machine::has(std::string_view feature) const { return std::ranges::find(isa, feature) != isa.end(); }

Machine read_machine(const fs::path& root) {
  Machine machine;
  read_cpus(root, machine);
  read_memory(root, machine);
  machine.nodes = read_nodes(root);
  machine.kernel = read_system_file_or_empty(below(root, "proc/sys/kernel/osrelease"));
  const std::string release = read_system_file_or_empty(below(root, "etc/os-release"));
  std::string_view name = value_after(release, "PRETTY_NAME=").value_or("");
  if (name.size() >= 2 && name.front() == '"') name = name.substr(1, name.size() - 2);
  machine.system = name;
  const std::string vmstat = read_system_file_or_empty(below(root, "proc/vmstat"));
  machine.oom_kills_since_boot = integer_of(value_after(vmstat, "oom_kill").value_or("")).value_or(0);
  return machine;
}

namespace {

struct Membership {
  int version = 0;
  std::string memory_path;
  std::string cpu_path;
};

// Lines "4:memory:/path" of version 1, "0::/path" of version 2. Where version 1 has the memory controller,
// the line of version 2 only tracks.
Membership membership_of(std::string_view text) {
  Membership found;
  for (const std::string_view line : lines_of(text)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const std::string path(line.substr(second + 1));
    if (controllers.find(",memory,") != std::string::npos) {
      found.version = 1;
      found.memory_path = path;
    }
    if (controllers.find(",cpu,") != std::string::npos) found.cpu_path = path;
    if (controllers == ",," && found.version == 0) {
      found.version = 2;
      found.memory_path = found.cpu_path = path;
    }
  }
  return found;
}

// The folder of a group. Inside a container the path may be that of the host while the mount begins at the
// container's own group: then the mount is the group.
fs::path group_folder(const fs::path& mount, const std::string& path) {
  const fs::path folder = below(mount, path);
  return fs::is_directory(folder) ? folder : mount;
}

// The smallest number in `file` of the folder and those above it, up to the mount. "max" is none.
std::optional<size_t> tightest(const fs::path& mount, fs::path folder, const char* file) {
  std::optional<size_t> least;
  // Version 1 writes "no limit" as the largest multiple of a page.
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  for (int depth = 0; depth < 64; ++depth) {
    const auto value = integer_of(read_system_file_or_empty(folder / file));
    if (value && *value >= 0 && *value < kNoLimit)
      least = std::min(least.value_or(SIZE_MAX), static_cast<size_t>(*value));
    if (folder.lexically_normal() == mount.lexically_normal() || !folder.has_relative_path()) break;
    folder = folder.parent_path();
  }
  return least;
}

int64_t count_in(const fs::path& file, std::string_view name) {
  const std::string text = read_system_file_or_empty(file);
  for (const std::string_view line : lines_of(text)) {
    const auto words = words_of(line);
    if (words.size() == 2 && words[0] == name) return integer_of(words[1]).value_or(0);
  }
  return 0;
}

std::optional<double> share(std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<size_t> size_in(const fs::path& file) {
  const auto value = integer_of(read_system_file_or_empty(file));
  return value ? std::optional(static_cast<size_t>(*value)) : std::nullopt;
}

}  // namespace

ControlGroup read_control_group(const fs::path& root, const std::string& process) {
  const Membership member =
      membership_of(read_system_file_or_empty(below(root, "proc/" + process + "/cgroup")));
  ControlGroup group{.version = member.version, .path = member.memory_path};
  if (group.version == 1) {
    const fs::path mount = below(root, "sys/fs/cgroup/memory");
    const fs::path folder = group_folder(mount, member.memory_path);
    group.memory_limit_bytes = tightest(mount, folder, "memory.limit_in_bytes");
    group.memory_bytes = size_in(folder / "memory.usage_in_bytes");
    group.oom_kills = count_in(folder / "memory.oom_control", "oom_kill");
    group.oom_events = group.oom_kills;  // version 1 counts no others
    const fs::path cpu = group_folder(below(root, "sys/fs/cgroup/cpu"), member.cpu_path);
    group.cpu_limit = share(integer_of(read_system_file_or_empty(cpu / "cpu.cfs_quota_us")),
                            integer_of(read_system_file_or_empty(cpu / "cpu.cfs_period_us")));
  } else if (group.version == 2) {
    const fs::path mount = below(root, "sys/fs/cgroup");
    const fs::path folder = group_folder(mount, member.memory_path);
    group.memory_limit_bytes = tightest(mount, folder, "memory.max");
    group.memory_bytes = size_in(folder / "memory.current");
    group.oom_events = count_in(folder / "memory.events", "oom");
    group.oom_kills = count_in(folder / "memory.events", "oom_kill");
    const std::string quota =
        read_system_file_or_empty(folder / "cpu.max");  // "200000 100000" or "max 100000"
    if (const auto words = words_of(quota); words.size() == 2)
      group.cpu_limit = share(integer_of(words[0]), integer_of(words[1]));
  }
  return group;
}

}  // namespace longspan::measure
