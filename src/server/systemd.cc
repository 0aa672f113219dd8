#include "server/systemd.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace longspan::server {
namespace {

// 0: nobody watches this process.
std::chrono::microseconds watchdog_period() {
  const char* period = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  if (period == nullptr || (pid != nullptr && std::atoll(pid) != getpid())) return {};
  return std::chrono::microseconds(std::atoll(period));
}

}  // namespace

void notify_service_manager(const char* state) {
  const char* place = std::getenv("NOTIFY_SOCKET");
  if (place == nullptr || *place == 0) return;
  const std::string_view path(place);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return;
  path.copy(address.sun_path, path.size());
  if (path.front() == '@') address.sun_path[0] = 0;  // an abstract name
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  sendto(fd, state, std::strlen(state), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
  close(fd);
}

Watchdog::Watchdog(std::function<bool()> well) {
  const std::chrono::microseconds period = watchdog_period();
  if (period.count() <= 0) return;
  thread_ = std::thread([this, period, well = std::move(well)] {
    std::unique_lock lock(mutex_);
    do {
      if (well()) notify_service_manager("WATCHDOG=1");
    } while (!wake_.wait_for(lock, period / 2, [this] { return stopped_; }));
  });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace longspan::server
