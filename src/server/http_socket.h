// HttpSocket: a connected TCP socket with timeouts. Plain poll(2) and recv(2): Asio's blocking calls know no
// time limit.
#pragma once

#include <chrono>
#include <string_view>

#include "server/http_stream.h"

namespace longspan::server {

// Owns the descriptor. One reading and writing thread; gone() and shut_down() from any.
class HttpSocket final : public HttpStream {
 public:
  explicit HttpSocket(int fd);  // sets no-delay and the keep-alive probes
  ~HttpSocket() override;
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  bool gone() const override;
  void set_read_timeout(std::chrono::milliseconds timeout) override { read_timeout_ = timeout; }
  size_t read(void* data, size_t size, boost::system::error_code& error) override;
  bool write_all(std::string_view bytes, std::chrono::milliseconds timeout) override;
  void linger(std::chrono::milliseconds timeout) override;
  void shut_down() const;  // both ways; wakes a blocked read

 private:
  int fd_;
  std::chrono::milliseconds read_timeout_{60'000};
};

}  // namespace longspan::server
