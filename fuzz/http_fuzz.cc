// Any bytes of a client through connection, limits and router, with handlers that stand in for the engine's:
// every response is well-formed, none follows the one that closes, and what the handlers see does not depend
// on how the bytes were cut into pieces.
#include <algorithm>
#include <boost/asio/error.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "server/http_connection.h"
#include "server/route_table.h"
#include "server/wire_error.h"

namespace {

using namespace longspan;
using namespace longspan::server;

constexpr size_t kMaxHeader = 512;  // bytes; small, so that the limits are within the fuzzer's reach
constexpr size_t kMaxBody = 256;

// What the client sends arrives in pieces; then it closes its side.
class MemoryStream final : public HttpStream {
 public:
  MemoryStream(std::string_view bytes, std::string_view piece_sizes) : bytes_(bytes), sizes_(piece_sizes) {}

  bool gone() const override { return bytes_.empty(); }
  void set_read_timeout(std::chrono::milliseconds) override {}
  size_t read(void* data, size_t size, boost::system::error_code& error) override {
    error = {};
    if (bytes_.empty()) error = boost::asio::error::eof;
    size_t piece = bytes_.size();
    if (!sizes_.empty()) piece = 1 + static_cast<uint8_t>(sizes_[num_reads_++ % sizes_.size()]) % 64;
    const size_t count = std::min({piece, size, bytes_.size()});
    std::copy_n(bytes_.data(), count, static_cast<char*>(data));
    bytes_.remove_prefix(count);
    return count;
  }
  bool write_all(std::string_view bytes, std::chrono::milliseconds) override {
    sent_ += bytes;
    return true;
  }
  void linger(std::chrono::milliseconds) override {}

  const std::string& sent() const { return sent_; }

 private:
  std::string_view bytes_;
  std::string_view sizes_;  // empty: all in one piece
  size_t num_reads_ = 0;
  std::string sent_;
};

struct Outcome {
  std::vector<std::string> requests;  // as the handlers saw them
  std::vector<int> statuses;
};

// The same, but that what breaks off or breaks the protocol, at the end, may be refused with one status or
// another, or left unanswered.
bool alike(const Outcome& a, const Outcome& b) {
  if (a.requests != b.requests) return false;
  const std::vector<int>& more = a.statuses.size() > b.statuses.size() ? a.statuses : b.statuses;
  const std::vector<int>& less = a.statuses.size() > b.statuses.size() ? b.statuses : a.statuses;
  const auto differ = std::mismatch(less.begin(), less.end(), more.begin());
  if (differ.second == more.end()) return true;
  const bool refusal = more.end() - differ.second == 1 && more.back() / 100 == 4;
  return refusal && (differ.first == less.end() || *differ.first / 100 == 4);
}

std::vector<Route> mock_routes(Outcome& outcome) {
  const auto seen = [&outcome](const HttpRequest& request) {
    CHECK(request.body.size() <= kMaxBody && request.path.size() <= kMaxHeader);
    std::string text = request.method + " " + request.path + "?" + request.query + "\n";
    for (const auto& [name, value] : request.headers) text += name + ": " + value + "\n";
    for (const std::string& part : request.parts) text += "{" + part + "}";
    outcome.requests.push_back(text + "\n" + request.body);
  };
  return {
      {"GET", "/health", Access::kOpen,
       [seen](const HttpRequest& request) {
         seen(request);
         return HttpResponse{.body = "{}"};
       }},
      {"GET", "/v1/models/{}", Access::kKey,
       [seen](const HttpRequest& request) {
         seen(request);
         return HttpResponse{.body = request.parts.front()};
       }},
      {"POST", "/v1/requests/{}/cancel", Access::kOpen,
       [seen](const HttpRequest& request) -> HttpResponse {
         seen(request);
         fail_field("id", "got '{}'", request.parts.front());
       }},
      {"POST", "/v1/chat/completions", Access::kOpen,
       [seen](const HttpRequest& request) {
         seen(request);
         HttpResponse response{.content_type = "text/event-stream"};
         response.stream = [body = request.body](BodyWriter& writer) {
           if (writer.write("data: " + body + "\n\n")) writer.write("data: [DONE]\n\n");
         };
         return response;
       }},
      {"POST", "/v1/messages", Access::kOpen,
       [seen](const HttpRequest& request) -> HttpResponse {
         seen(request);
         fail(ErrorKind::kExhausted, "no room for {} bytes", request.body.size());
       }},
  };
}

// Up to the blank line behind a head, which has no other line that is empty.
std::string_view take_head(std::string_view& bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  CHECK(end != bytes.npos);
  const std::string_view head = bytes.substr(0, end + 2);
  bytes.remove_prefix(end + 4);
  return head;
}

std::string_view field(std::string_view head, std::string_view name) {
  const size_t at = head.find("\r\n" + std::string(name) + ": ");
  if (at == head.npos) return {};
  const size_t begin = at + 4 + name.size();
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

void skip_chunks(std::string_view& bytes) {
  for (;;) {
    const size_t line = bytes.find("\r\n");
    CHECK(line != bytes.npos && line > 0);
    const size_t size = std::strtoull(std::string(bytes.substr(0, line)).c_str(), nullptr, 16);
    CHECK(bytes.size() >= line + 2 + size + 2 && bytes.substr(line + 2 + size, 2) == "\r\n");
    bytes.remove_prefix(line + 2 + size + 2);
    if (size == 0) return;
  }
}

// methods: of the requests that were handled, each of which has one response, in order. One to HEAD says how
// long a body would be and has none.
std::vector<int> statuses_of(std::string_view sent, const std::vector<std::string>& methods) {
  std::vector<int> statuses;
  size_t num_final = 0;
  bool open = true;
  while (!sent.empty()) {
    CHECK(open && sent.substr(0, 9) == "HTTP/1.1 ");
    const std::string_view head = take_head(sent);
    statuses.push_back(std::atoi(std::string(head.substr(9, 3)).c_str()));
    CHECK(statuses.back() == 100 || (statuses.back() >= 200 && statuses.back() < 600));
    if (statuses.back() == 100) continue;
    open = field(head, "Connection") == "keep-alive";
    CHECK(open || field(head, "Connection") == "close");
    const size_t index = num_final++;
    if (index < methods.size() && methods[index] == "HEAD") continue;
    const std::string_view length = field(head, "Content-Length");
    if (!length.empty()) {
      const size_t size = std::strtoull(std::string(length).c_str(), nullptr, 10);
      CHECK(sent.size() >= size);
      sent.remove_prefix(size);
    } else if (field(head, "Transfer-Encoding") == "chunked") {
      skip_chunks(sent);
    } else {  // to the end of the connection
      CHECK(!open);
      sent = {};
    }
  }
  return statuses;
}

Outcome serve(std::string_view bytes, std::string_view piece_sizes) {
  Outcome outcome;
  const RouteTable routes(mock_routes(outcome), "key");
  std::vector<std::string> methods;
  HttpSite site{
      .limits = {.max_header_bytes = kMaxHeader, .max_body_bytes = kMaxBody},
      .handler =
          [&](HttpRequest& request) {
            methods.push_back(request.method);
            return routes.handle(request);
          },
      .on_error =
          [](int status, const std::string& message) {
            return openai_error_response({.status = status, .type = error_type(status), .message = message});
          }};
  MemoryStream stream(bytes, piece_sizes);
  serve_connection(stream, site);
  CHECK(site.num_busy == 0 && site.num_body_bytes == 0);
  outcome.statuses = statuses_of(stream.sent(), methods);
  return outcome;
}

}  // namespace

// Bytes: how many piece sizes follow, the sizes, what the client sends.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 4096) return 0;
  static const bool kQuiet = (set_log_level(LogLevel::kError), true);
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t num_sizes = std::min<size_t>(data[0] % 8, size - 1);
  const std::string_view bytes = all.substr(1 + num_sizes);
  const Outcome whole = serve(bytes, "");
  const Outcome pieces = serve(bytes, all.substr(1, num_sizes));
  CHECK(kQuiet && alike(whole, pieces));
  return 0;
}
