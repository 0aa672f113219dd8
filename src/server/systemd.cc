#include "server/systemd.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace longspan::server {

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

}  // namespace longspan::server
