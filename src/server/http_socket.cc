#include "server/http_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/error.hpp>
#include <cerrno>

namespace longspan::server {
namespace {

// A peer that vanished without a word is noticed after 30 + 3 * 10 seconds.
constexpr int kProbeIdleSeconds = 30;
constexpr int kProbeIntervalSeconds = 10;
constexpr int kProbes = 3;
constexpr unsigned kUnackedMilliseconds = 60'000;

template <class T>
void set_option(int fd, int level, int name, T value) {
  setsockopt(fd, level, name, &value, sizeof(value));  // best effort: none of them changes an answer
}

// Waits until one of `events` holds; false on timeout.
bool wait_for(int fd, short events, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

HttpSocket::HttpSocket(int fd) : fd_(fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kProbeIdleSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeIntervalSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnackedMilliseconds);
}

HttpSocket::~HttpSocket() { close(fd_); }

bool HttpSocket::gone() const {
  // POLLRDHUP looks past bytes that are still unread, as a pipelined request.
  pollfd entry{.fd = fd_, .events = POLLRDHUP, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

size_t HttpSocket::read(void* data, size_t size, boost::system::error_code& error) {
  error = {};
  for (;;) {
    const ssize_t count = recv(fd_, data, size, MSG_DONTWAIT);
    if (count > 0) return static_cast<size_t>(count);
    if (count == 0) {
      error = boost::asio::error::eof;
      return 0;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      error.assign(errno, boost::system::system_category());
      return 0;
    }
    if (!wait_for(fd_, POLLIN, read_timeout_)) {
      error = boost::asio::error::timed_out;
      return 0;
    }
  }
}

bool HttpSocket::write_all(std::string_view bytes, std::chrono::milliseconds timeout) {
  while (!bytes.empty()) {
    const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd_, POLLOUT, timeout)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void HttpSocket::linger(std::chrono::milliseconds timeout) {
  shutdown(fd_, SHUT_WR);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  char sink[16 << 10];
  boost::system::error_code error;
  read_timeout_ = timeout;
  while (!error && std::chrono::steady_clock::now() < deadline) read(sink, sizeof(sink), error);
}

void HttpSocket::shut_down() const { shutdown(fd_, SHUT_RDWR); }

}  // namespace longspan::server
