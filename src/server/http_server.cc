#include "server/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "server/http_socket.h"

namespace longspan::server {
namespace {

namespace http = boost::beast::http;

constexpr int kBacklog = 512;
constexpr std::chrono::milliseconds kLinger{2'000};
constexpr std::chrono::milliseconds kNoWait{0};
constexpr size_t kReadBytes = 256 << 10;  // of the connection's read buffer, beyond the header

using Parser = http::request_parser<http::string_body>;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return out;
}

HttpRequest to_request(Parser& parser, const HttpPeer& peer) {
  auto& message = parser.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : message)
    request.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
  request.body = std::move(message.body());
  request.peer = &peer;
  request.arrived = std::chrono::steady_clock::now();
  return request;
}

// What to answer when reading failed; 0: nothing, the client is gone or idle.
int status_of(const boost::system::error_code& error) {
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == boost::asio::error::timed_out) return 408;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  if (error.category() == http::make_error_code(http::error::bad_method).category()) return 400;
  return 0;
}

std::string head_of(const HttpResponse& response, bool keep_alive, bool chunked) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  if (!response.content_type.empty()) head += fmt::format("Content-Type: {}\r\n", response.content_type);
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (!response.stream)
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  else if (chunked)
    head += "Transfer-Encoding: chunked\r\n";
  return head + (keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

class StreamWriter final : public BodyWriter {
 public:
  StreamWriter(HttpSocket& socket, bool chunked, std::chrono::milliseconds timeout)
      : socket_(socket), chunked_(chunked), timeout_(timeout) {}

  bool write(std::string_view bytes) override {
    if (bytes.empty() || !alive_) return alive_;  // an empty chunk would end the body
    alive_ = socket_.write_all(
        chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::string(bytes), timeout_);
    return alive_;
  }
  bool finish() { return alive_ && (!chunked_ || socket_.write_all("0\r\n\r\n", timeout_)); }

 private:
  HttpSocket& socket_;
  bool chunked_;
  std::chrono::milliseconds timeout_;
  bool alive_ = true;
};

// Adds to a total while it lives.
class Share {
 public:
  Share(std::atomic<size_t>& total, size_t amount) : total_(total), amount_(amount) { total_ += amount; }
  ~Share() { total_ -= amount_; }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

 private:
  std::atomic<size_t>& total_;
  size_t amount_;
};

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
      : limits_(limits),
        handler_(std::move(handler)),
        on_error_(std::move(on_error)),
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

  int num_busy() const { return static_cast<int>(num_busy_); }

  void start() {
    acceptor_ = std::thread([this] { accept_all(); });
  }

  void stop() {
    const uint64_t one = 1;
    if (write(stop_event_, &one, sizeof(one)) < 0) log(LogLevel::kWarn, "http: the acceptor cannot be woken");
    if (acceptor_.joinable()) acceptor_.join();
    std::unique_lock lock(mutex_);
    stopping_ = true;
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
    if (const int open = num_connections(); open >= limits_.max_connections) {
      const HttpResponse refusal = on_error_(503, fmt::format("too many connections: {} are open", open));
      socket->write_all(head_of(refusal, /*keep_alive=*/false, /*chunked=*/false) + refusal.body, kNoWait);
      return;
    }
    const auto place = [&] {
      const std::lock_guard lock(mutex_);
      return sockets_.insert(sockets_.end(), socket.get());
    }();
    try {
      std::thread([this, place, owned = std::move(socket)]() mutable {
        serve(*owned);
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

  void serve(HttpSocket& socket) {
    boost::beast::flat_buffer buffer(limits_.max_header_bytes + kReadBytes);
    try {
      while (serve_one(socket, buffer)) continue;
    } catch (const std::exception& error) {  // out of memory, or a handler that broke its promise
      log(LogLevel::kError, "http: a connection ended with an error: {}", error.what());
    }
  }

  // One request; false when the connection must be closed.
  bool serve_one(HttpSocket& socket, boost::beast::flat_buffer& buffer) {
    Parser parser;
    parser.header_limit(static_cast<std::uint32_t>(limits_.max_header_bytes));
    parser.body_limit(limits_.max_body_bytes);
    boost::system::error_code error;
    socket.set_read_timeout(limits_.keep_alive_timeout);
    http::read_header(socket, buffer, parser, error);
    if (error == boost::asio::error::timed_out && buffer.size() == 0 && !parser.got_some()) return false;
    socket.set_read_timeout(limits_.read_timeout);
    const bool has_body = !error && !parser.is_done();
    std::optional<Share> body;
    if (has_body) body.emplace(num_body_bytes_, parser.content_length().value_or(limits_.max_body_bytes));
    if (has_body && num_body_bytes_ > limits_.max_total_body_bytes)
      return refuse(
          socket, 503,
          fmt::format("more than {} bytes of requests are under way", limits_.max_total_body_bytes));
    if (has_body) {
      const auto expect = parser.get()[http::field::expect];
      if (boost::beast::iequals(expect, "100-continue") &&
          !socket.write_all("HTTP/1.1 100 Continue\r\n\r\n", limits_.write_timeout))
        return false;
      http::read(socket, buffer, parser, error);
    }
    if (error) {
      const int status = status_of(error);
      return status != 0 && refuse(socket, status, error.message());
    }
    const bool is_head = parser.get().method() == http::verb::head;
    const bool chunked = parser.get().version() >= 11;
    const bool keep_alive = parser.get().keep_alive() && !is_stopping();
    const Share busy(num_busy_, 1);
    HttpResponse response = [&] {  // the request's memory goes before a stream begins
      HttpRequest request = to_request(parser, socket);
      return handler_(request);
    }();
    body.reset();
    if (is_head) {
      response.stream = nullptr;
      response.body.clear();
    }
    return respond(socket, response, keep_alive && (chunked || !response.stream), chunked);
  }

  // An answer in place of reading on; false: the connection must be closed.
  bool refuse(HttpSocket& socket, int status, const std::string& message) const {
    respond(socket, on_error_(status, message), /*keep_alive=*/false, /*chunked=*/false);
    socket.linger(kLinger);
    return false;
  }

  // False when the connection must be closed.
  bool respond(HttpSocket& socket, const HttpResponse& response, bool keep_alive, bool chunked) const {
    const std::string head = head_of(response, keep_alive, chunked);
    if (!response.stream) return socket.write_all(head + response.body, limits_.write_timeout) && keep_alive;
    if (!socket.write_all(head, limits_.write_timeout)) {
      StreamWriter dead(socket, chunked, kNoWait);
      response.stream(dead);  // it notices at its first write, and cleans up
      return false;
    }
    StreamWriter writer(socket, chunked, limits_.write_timeout);
    response.stream(writer);
    return writer.finish() && keep_alive;
  }

  bool is_stopping() const {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  HttpLimits limits_;
  Handler handler_;
  ErrorHandler on_error_;
  int listener_;
  int stop_event_;
  int port_;
  std::atomic<size_t> num_busy_ = 0;        // connections whose handler or stream runs
  std::atomic<size_t> num_body_bytes_ = 0;  // of all requests being read or handled
  std::thread acceptor_;
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  std::list<HttpSocket*> sockets_;  // guarded by mutex_, as stopping_: one for each connection thread
  bool stopping_ = false;
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
