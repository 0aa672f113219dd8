// HttpStream: what a connection reads from and writes to, with time limits. A socket, or bytes in memory.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/error.hpp>
#include <chrono>
#include <string_view>

#include "server/http_server.h"

namespace longspan::server {

class HttpStream : public HttpPeer {
 public:
  virtual void set_read_timeout(std::chrono::milliseconds timeout) = 0;
  // At least one byte, or an error: eof, timed_out, or the system's.
  virtual size_t read(void* data, size_t size, boost::system::error_code& error) = 0;
  // All of it, or false: the client is gone or took nothing for `timeout`.
  virtual bool write_all(std::string_view bytes, std::chrono::milliseconds timeout) = 0;
  // Says that nothing more will be sent, and reads away what the client still sends, so that it sees the last
  // response instead of a reset.
  virtual void linger(std::chrono::milliseconds timeout) = 0;

  // Beast's SyncReadStream.
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
};

}  // namespace longspan::server
