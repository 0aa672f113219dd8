// HttpSocket: a connected TCP socket with timeouts, as the synchronous stream that Beast reads from. Plain
// poll(2) and recv(2): Asio's blocking calls know no time limit.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/error.hpp>
#include <chrono>
#include <string_view>

#include "server/http_server.h"

namespace longspan::server {

// Owns the descriptor. One reading and writing thread; gone() and shut_down() from any.
class HttpSocket final : public HttpPeer {
 public:
  explicit HttpSocket(int fd);  // sets no-delay and the keep-alive probes
  ~HttpSocket() override;
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  bool gone() const override;
  void set_read_timeout(std::chrono::milliseconds timeout) { read_timeout_ = timeout; }

  // Beast's SyncReadStream. Errors: eof, timed_out, or the system's.
  template <class Buffers>
  size_t read_some(const Buffers& buffers, boost::system::error_code& error) {
    for (auto at = boost::asio::buffer_sequence_begin(buffers);
         at != boost::asio::buffer_sequence_end(buffers); ++at) {
      const boost::asio::mutable_buffer buffer(*at);
      if (buffer.size() > 0) return read(buffer.data(), buffer.size(), error);
    }
    error = {};
    return 0;
  }

  template <class Buffers>
  size_t read_some(const Buffers& buffers) {
    boost::system::error_code error;
    const size_t count = read_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return count;
  }

  // All of it, or false: the client is gone or took nothing for `timeout`.
  bool write_all(std::string_view bytes, std::chrono::milliseconds timeout);
  // Says that nothing more will be sent, and reads away what the client still sends, so that it sees the last
  // response instead of a reset.
  void linger(std::chrono::milliseconds timeout);
  void shut_down() const;  // both ways; wakes a blocked read

 private:
  size_t read(void* data, size_t size, boost::system::error_code& error);

  int fd_;
  std::chrono::milliseconds read_timeout_{60'000};
};

}  // namespace longspan::server
