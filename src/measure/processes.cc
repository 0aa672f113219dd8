#include "measure/processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "measure/system_file.h"

namespace longspan::measure {

namespace fs = std::filesystem;

namespace {

fs::path folder_of(const fs::path& root, int64_t pid) { return below(root, fmt::format("proc/{}", pid)); }

// What the open files of a process lead to. Nothing where they may not be read.
void for_each_open_file(const fs::path& root, int64_t pid,
                        const std::function<void(const std::string& target)>& visit) {
  std::error_code error;
  for (fs::directory_iterator at(folder_of(root, pid) / "fd", error), end; !error && at != end;
       at.increment(error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(at->path(), gone).string();
    if (!gone) visit(target);
  }
}

bool is_card(const std::string& file) {
  constexpr std::string_view kNvidia = "/dev/nvidia";
  return file == "/dev/kfd" || file.starts_with("/dev/dri/renderD") ||
         (file.starts_with(kNvidia) && file.size() > kNvidia.size() && file[kNvidia.size()] >= '0' &&
          file[kNvidia.size()] <= '9');
}

// The inode of the socket that listens on `port`. Lines "0: 0100007F:1F40 00000000:0000 0A ...": local
// address, remote address, state (0A listens); the tenth word is the inode.
std::optional<std::string> listening_inode(std::string_view table, int port) {
  for (const std::string_view line : lines_of(table)) {
    const auto words = words_of(line);
    if (words.size() < 10 || words[3] != "0A") continue;
    const size_t colon = words[1].rfind(':');
    if (colon != std::string_view::npos && words[1].substr(colon + 1) == fmt::format("{:04X}", port))
      return std::string(words[9]);
  }
  return std::nullopt;
}

}  // namespace

std::vector<int64_t> process_ids(const fs::path& root) {
  std::vector<int64_t> ids;
  std::error_code error;
  for (fs::directory_iterator at(below(root, "proc"), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos)
      ids.push_back(integer_of(name).value_or(0));
  }
  std::ranges::sort(ids);
  return ids;
}

Process process_of(const fs::path& root, int64_t pid) {
  constexpr size_t kMaxBytes = 120;
  std::string command = read_system_file_or_empty(folder_of(root, pid) / "cmdline");
  std::ranges::replace(command, '\0', ' ');
  if (command.empty()) command = read_system_file_or_empty(folder_of(root, pid) / "comm");
  if (command.size() > kMaxBytes) command.resize(kMaxBytes);
  return {.pid = pid, .command = command};
}

std::vector<DeviceHolder> device_holders(const fs::path& root) {
  std::vector<DeviceHolder> holders;
  for (const int64_t pid : process_ids(root)) {
    std::vector<std::string> devices;
    for_each_open_file(root, pid, [&](const std::string& target) {
      if (is_card(target)) devices.push_back(target);
    });
    std::ranges::sort(devices);
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    for (std::string& device : devices) holders.push_back({process_of(root, pid), std::move(device)});
  }
  return holders;
}

std::optional<Listener> listener_on(const fs::path& root, int port) {
  std::optional<std::string> inode;
  for (const char* table : {"proc/net/tcp", "proc/net/tcp6"})
    if (!inode) inode = listening_inode(read_system_file_or_empty(below(root, table)), port);
  if (!inode) return std::nullopt;
  const std::string socket = fmt::format("socket:[{}]", *inode);
  for (const int64_t pid : process_ids(root)) {
    bool holds = false;
    for_each_open_file(root, pid, [&](const std::string& target) { holds = holds || target == socket; });
    if (holds) return Listener{process_of(root, pid), port};
  }
  return Listener{.process = {}, .port = port};
}

std::vector<int64_t> processes_named(const fs::path& root, const std::string& name, int64_t but_not) {
  std::vector<int64_t> found;
  for (const int64_t pid : process_ids(root)) {
    if (pid == but_not) continue;
    std::error_code error;
    const fs::path file = fs::read_symlink(folder_of(root, pid) / "exe", error);
    const std::string file_name = file.filename().string();
    if (!error && (file_name == name || file_name == name + " (deleted)")) found.push_back(pid);
  }
  return found;
}

}  // namespace longspan::measure
