#include "engine/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace longspan::engine {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// One number out of a file; kUnlimited when there is none ("max", no file).
size_t read_number(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : kUnlimited;
}

// Page cache of this cgroup that the kernel gives back before it refuses anybody: a model file just read.
size_t reclaimable_page_cache() {
  std::ifstream file("/sys/fs/cgroup/memory.stat");
  std::string key;
  size_t value = 0;
  while (file >> key >> value)
    if (key == "inactive_file") return value;
  return 0;
}

size_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  return kUnlimited;
}

}  // namespace

size_t available_memory_bytes() {
  const size_t limit = read_number("/sys/fs/cgroup/memory.max");  // cgroup v2, as a container sees its own
  const size_t current = read_number("/sys/fs/cgroup/memory.current");
  if (limit == kUnlimited || current == kUnlimited) return meminfo_available();
  const size_t used = current - std::min(current, reclaimable_page_cache());
  return std::min(meminfo_available(), limit - std::min(limit, used));
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
