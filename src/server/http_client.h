// HttpClient: one request to an HTTP/1.1 server, its body as it comes. Plain HTTP: TLS ends at a proxy. Knows
// no JSON.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::server {

struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string path;  // without a slash at its end; often empty
};
HttpUrl parse_http_url(std::string_view text);  // throws kInvalid; kUnsupported for https

struct HttpTimeouts {
  std::chrono::milliseconds connect{30'000};
  std::chrono::milliseconds read{1'800'000};  // between two pieces of the response
};

struct HttpQuery {
  std::string method = "GET";
  std::string path;  // behind the URL's
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

struct HttpAnswer {
  int status = 0;
  std::string content_type;
  std::string body;  // what `on_body` did not take
};

// Sends over a connection of its own. Where given, `on_body` takes the pieces of a 200's body as they come;
// other answers are whole. Throws kEnvironment: no connection, a time-out, or an answer that breaks off.
HttpAnswer http_request(const HttpUrl& url, const HttpTimeouts& timeouts, const HttpQuery& query,
                        const std::function<void(std::string_view)>& on_body = nullptr);

// The data of server-sent events, whatever the pieces they come in. Comments and event names are skipped.
class EventReader final {
 public:
  void push(std::string_view piece, const std::function<void(std::string_view data)>& on_data);

 private:
  std::string line_;  // begun, not yet ended
};

}  // namespace longspan::server
