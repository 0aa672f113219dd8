#include "server/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/beast/http/status.hpp>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "server/http_connection.h"
#include "server/http_socket.h"

namespace longspan::server {
namespace {

namespace http = boost::beast::http;

constexpr int kBacklog = 512;

// A listening socket on the first address of `host` that can be bound.
int listen_on(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); status != 0)
    fail(ErrorKind::kEnvironment, "cannot listen on {}:{}: {}", host, port, gai_strerror(status));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    const int on = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
    error = errno;
    if (fd >= 0) close(fd);
  }
  fail(ErrorKind::kEnvironment, "cannot listen on {}:{}: {}", host, port, std::strerror(error));
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

std::optional<std::string_view> HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return value;
  return std::nullopt;
}

void HttpResponse::set_header(std::string name, std::string value) {
  for (auto& [known, old] : headers)
    if (known == name) {
      old = std::move(value);
      return;
    }
  headers.emplace_back(std::move(name), std::move(value));
}

std::string_view reason_phrase(int status) {
  const auto phrase = http::obsolete_reason(static_cast<http::status>(status));
  return {phrase.data(), phrase.size()};
}

class HttpServer::Impl {
 public:
  Impl(const std::string& host, int port, const HttpLimits& limits, Handler handler, ErrorHandler on_error)
      : site_{.limits = limits, .handler = std::move(handler), .on_error = std::move(on_error)},
        listener_(listen_on(host, port)),
        stop_event_(eventfd(0, EFD_CLOEXEC)),
        port_(port_of(listener_)) {}

  ~Impl() {
    stop();
    close(listener_);
    close(stop_event_);
  }

  int port() const { return port_; }
  int num_connections() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(sockets_.size());
  }

  int num_busy() const { return static_cast<int>(site_.num_busy); }

  void start() {
    acceptor_ = std::thread([this] { accept_all(); });
  }

  void stop() {
    const uint64_t one = 1;
    if (write(stop_event_, &one, sizeof(one)) < 0) log(LogLevel::kWarn, "http: the acceptor cannot be woken");
    if (acceptor_.joinable()) acceptor_.join();
    std::unique_lock lock(mutex_);
    site_.stopping = true;
    for (const HttpSocket* socket : sockets_) socket->shut_down();
    closed_.wait(lock, [&] { return sockets_.empty(); });
  }

 private:
  void accept_all() {
    pollfd entries[2] = {{.fd = listener_, .events = POLLIN, .revents = 0},
                         {.fd = stop_event_, .events = POLLIN, .revents = 0}};
    for (;;) {
      if (poll(entries, 2, -1) < 0 && errno != EINTR) return;
      if (entries[1].revents != 0) return;
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) {
        open(std::make_unique<HttpSocket>(fd));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until a connection ends
      }
    }
  }

  void open(std::unique_ptr<HttpSocket> socket) {
    if (const int open = num_connections(); open >= site_.limits.max_connections) {
      turn_away(*socket, site_.on_error(503, fmt::format("too many connections: {} are open", open)));
      return;
    }
    const auto place = [&] {
      const std::lock_guard lock(mutex_);
      return sockets_.insert(sockets_.end(), socket.get());
    }();
    try {
      std::thread([this, place, owned = std::move(socket)]() mutable {
        serve_connection(*owned, site_);
        const std::lock_guard lock(mutex_);
        sockets_.erase(place);
        owned.reset();
        closed_.notify_all();  // under the lock: stop() may destroy this as soon as it is released
      }).detach();
    } catch (const std::system_error& error) {  // no thread to be had: the connection is closed
      log(LogLevel::kWarn, "http: {}", error.what());
      const std::lock_guard lock(mutex_);
      sockets_.erase(place);
    }
  }

  HttpSite site_;
  int listener_;
  int stop_event_;
  int port_;
  std::thread acceptor_;
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  std::list<HttpSocket*> sockets_;  // guarded by mutex_: one for each connection thread
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler,
                       ErrorHandler on_error)
    : impl_(std::make_unique<Impl>(host, port, limits, std::move(handler), std::move(on_error))) {}
HttpServer::~HttpServer() { stop(); }
int HttpServer::port() const { return impl_->port(); }
int HttpServer::num_connections() const { return impl_->num_connections(); }
int HttpServer::num_busy() const { return impl_->num_busy(); }
void HttpServer::start() { impl_->start(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace longspan::server
