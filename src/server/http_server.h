// HttpServer: HTTP/1.1 over TCP, one thread a connection. A handler is a function from a request to a
// response and may block: most of its life is waiting for the engine. Knows no JSON, no routes and no engine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::server {

struct HttpLimits {
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;
  size_t max_total_body_bytes = size_t{1}
                                << 30;  // of all requests at once; a chunked one counts as the largest
  int max_connections = 1024;           // one more is answered 503 and closed
  std::chrono::milliseconds read_timeout{60'000};        // between two pieces of a request
  std::chrono::milliseconds keep_alive_timeout{75'000};  // between two requests
  std::chrono::milliseconds write_timeout{60'000};       // a client that takes nothing for so long is gone
};

// The client at the other end of a connection.
class HttpPeer {
 public:
  virtual ~HttpPeer() = default;
  // True once the client has closed its side or the connection broke. One system call; any thread.
  virtual bool gone() const = 0;
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query
  std::string query;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::chrono::steady_clock::time_point arrived;
  // Set by the handler:
  std::string id;                  // for logs and for the client
  std::vector<std::string> parts;  // what stood for the {} of the route
  const HttpPeer* peer = nullptr;  // valid during the handler and the stream of its response; may be null

  std::optional<std::string_view> header(std::string_view lower_case_name) const;
};

// Where a streamed body goes.
class BodyWriter {
 public:
  virtual ~BodyWriter() = default;
  // Sends at once. False when the client is gone: nothing more will arrive.
  virtual bool write(std::string_view bytes) = 0;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // Instead of `body`: runs on the connection's thread after the headers were sent. Must not throw.
  std::function<void(BodyWriter&)> stream;

  void set_header(std::string name, std::string value);  // replaces
};

std::string_view reason_phrase(int status);

// Thread-safe. Handlers run on many threads at once.
class HttpServer final {
 public:
  using Handler = std::function<HttpResponse(HttpRequest&)>;
  // Makes the response to a request that never reached the handler: malformed, too large, too many.
  using ErrorHandler = std::function<HttpResponse(int status, const std::string& message)>;

  // Binds and listens, so that port() is known; serves nothing yet. Port 0: any free one. Throws
  // kEnvironment.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler,
             ErrorHandler on_error);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  int num_connections() const;
  int num_busy() const;  // connections whose handler or stream runs
  void start();
  // Closes the listener and every connection, and waits for the handlers. May be called more than once.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan::server
