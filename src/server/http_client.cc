#include "server/http_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "server/http_socket.h"

namespace longspan::server {
namespace {

namespace http = boost::beast::http;

constexpr size_t kMaxHeadBytes = 64 << 10;
constexpr size_t kPieceBytes = 64 << 10;

// 0, or what went wrong.
int connect_within(int fd, const addrinfo& address, std::chrono::milliseconds timeout) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
  if (poll(&entry, 1, static_cast<int>(timeout.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::unique_ptr<HttpSocket> connect_to(const HttpUrl& url, std::chrono::milliseconds timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found); status != 0)
    fail(ErrorKind::kEnvironment, "http://{}:{}: {}", url.host, url.port, gai_strerror(status));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0) continue;
    auto owned = std::make_unique<HttpSocket>(fd);
    error = connect_within(fd, *at, timeout);
    if (error == 0) return owned;
  }
  fail(ErrorKind::kEnvironment, "cannot connect to http://{}:{}: {}", url.host, url.port,
       std::strerror(error));
}

std::string bytes_of(const HttpUrl& url, const HttpQuery& query) {
  std::string head =
      fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: longspan\r\nConnection: close\r\n",
                  query.method, url.path, query.path, url.host, url.port);
  for (const auto& [name, value] : query.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (!query.body.empty() || query.method != "GET")
    head += fmt::format("Content-Length: {}\r\n", query.body.size());
  return head + "\r\n" + query.body;
}

[[noreturn]] void broken_off(const HttpUrl& url, const HttpTimeouts& timeouts,
                             const boost::system::error_code& error) {
  if (error == boost::asio::error::timed_out)
    fail(ErrorKind::kEnvironment, "http://{}:{} sent nothing for {} s: the read timeout", url.host, url.port,
         static_cast<double>(timeouts.read.count()) / 1000);
  fail(ErrorKind::kEnvironment, "http://{}:{}: the answer broke off: {}", url.host, url.port,
       error.message());
}

}  // namespace

HttpUrl parse_http_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.substr(0, 8) == "https://")
    fail(ErrorKind::kUnsupported, "got '{}', need http://: this client speaks no TLS", text);
  if (text.substr(0, kScheme.size()) != kScheme)
    fail(ErrorKind::kInvalid, "got '{}', need http://HOST[:PORT]", text);
  std::string_view rest = text.substr(kScheme.size());
  HttpUrl url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  while (!url.path.empty() && url.path.back() == '/') url.path.pop_back();
  rest = rest.substr(0, slash);
  const bool bracketed = !rest.empty() && rest.front() == '[';  // an IPv6 address
  const size_t host_end = bracketed ? rest.find(']') : std::min(rest.find(':'), rest.size());
  if (host_end == rest.npos) fail(ErrorKind::kInvalid, "got '{}', need ']' behind the address", text);
  url.host = bracketed ? rest.substr(1, host_end - 1) : rest.substr(0, host_end);
  rest.remove_prefix(host_end + (bracketed ? 1 : 0));
  if (!rest.empty()) url.port = rest.substr(1);
  const bool digits = url.port.find_first_not_of("0123456789") == std::string::npos;
  if (url.host.empty() || url.port.empty() || !digits || (!rest.empty() && rest.front() != ':'))
    fail(ErrorKind::kInvalid, "got '{}', need http://HOST[:PORT]", text);
  return url;
}

HttpAnswer http_request(const HttpUrl& url, const HttpTimeouts& timeouts, const HttpQuery& query,
                        const std::function<void(std::string_view)>& on_body) {
  const auto socket = connect_to(url, timeouts.connect);
  if (!socket->write_all(bytes_of(url, query), timeouts.read))
    fail(ErrorKind::kEnvironment, "http://{}:{} does not take the request", url.host, url.port);
  socket->set_read_timeout(timeouts.read);
  boost::beast::flat_buffer buffer(kMaxHeadBytes + kPieceBytes);
  http::response_parser<http::buffer_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(kMaxHeadBytes));
  parser.body_limit(boost::none);
  boost::system::error_code error;
  http::read_header(*socket, buffer, parser, error);
  if (error) broken_off(url, timeouts, error);
  auto& message = parser.get();
  HttpAnswer answer{.status = static_cast<int>(message.result_int()),
                    .content_type = std::string(message[http::field::content_type])};
  const bool streams = on_body && answer.status == 200;
  std::array<char, kPieceBytes> piece;
  while (!parser.is_done()) {
    message.body().data = piece.data();
    message.body().size = piece.size();
    http::read_some(*socket, buffer, parser, error);
    if (error == http::error::need_buffer) error = {};
    const std::string_view got(piece.data(), piece.size() - message.body().size);
    if (streams && !got.empty())
      on_body(got);
    else
      answer.body += got;
    if (error) broken_off(url, timeouts, error);
  }
  return answer;
}

void EventReader::push(std::string_view piece, const std::function<void(std::string_view data)>& on_data) {
  constexpr std::string_view kData = "data:";
  while (!piece.empty()) {
    const size_t end = piece.find('\n');
    line_ += piece.substr(0, end);
    if (end == piece.npos) return;
    piece.remove_prefix(end + 1);
    std::string_view line = line_;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.substr(0, kData.size()) == kData) {
      line.remove_prefix(kData.size());
      if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
      on_data(line);
    }
    line_.clear();
  }
}

}  // namespace longspan::server
