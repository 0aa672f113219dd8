#include "engine/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace longspan::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// Where a version of cgroups keeps what. v1 writes "no limit" as a number near 2^63.
struct CgroupVersion {
  const char* mount;            // below the root
  std::string_view membership;  // begins our line of /proc/self/cgroup, behind its number
  const char* limit;
  const char* usage;
  std::string_view inactive_key;  // of memory.stat: page cache that the kernel gives back before it refuses
};
constexpr CgroupVersion kVersions[] = {
    {"sys/fs/cgroup", "::", "memory.max", "memory.current", "inactive_file"},
    {"sys/fs/cgroup/memory", ":memory:", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file"},
};

// One number out of a file; kUnlimited when there is none ("max", no file).
size_t read_number(const fs::path& path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : kUnlimited;
}

size_t read_stat(const fs::path& path, std::string_view wanted) {
  std::ifstream file(path);
  std::string key;
  size_t value = 0;
  while (file >> key >> value)
    if (key == wanted) return value;
  return 0;
}

// What one cgroup's limit leaves.
size_t room_in(const fs::path& cgroup, const CgroupVersion& version) {
  const size_t limit = read_number(cgroup / version.limit);
  const size_t current = read_number(cgroup / version.usage);
  if (limit == kUnlimited || current == kUnlimited) return kUnlimited;
  const size_t used = current - std::min(current, read_stat(cgroup / "memory.stat", version.inactive_key));
  return limit - std::min(limit, used);
}

// Our cgroup, as a path below the mount. A container may name one that it does not see: then those above
// count.
fs::path own_cgroup(const fs::path& root, const CgroupVersion& version) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line))
    if (const size_t colon = line.find(':');
        colon != std::string::npos && std::string_view(line).substr(colon).starts_with(version.membership))
      return fs::path(line.substr(colon + version.membership.size())).relative_path();
  return {};
}

size_t room_in_cgroups(const fs::path& root, const CgroupVersion& version) {
  const fs::path mount = root / version.mount;
  size_t room = room_in(mount, version);
  for (fs::path own = own_cgroup(root, version); !own.empty(); own = own.parent_path())
    room = std::min(room, room_in(mount / own, version));
  return room;
}

size_t meminfo_available(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  return kUnlimited;
}

}  // namespace

size_t available_memory_bytes(const fs::path& root) {
  size_t available = meminfo_available(root);
  for (const CgroupVersion& version : kVersions)
    available = std::min(available, room_in_cgroups(root, version));
  return available;
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

size_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace longspan::engine
