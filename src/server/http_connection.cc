#include "server/http_connection.h"

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "core/log.h"

namespace longspan::server {
namespace {

namespace http = boost::beast::http;

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
  std::string target(message.target());
  if (const size_t host = target.find("://"); host != std::string::npos && target[0] != '/') {
    const size_t path = target.find('/', host + 3);  // as a client says it to a proxy
    target = path == std::string::npos ? "/" : target.substr(path);
  }
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
  StreamWriter(HttpStream& stream, bool chunked, std::chrono::milliseconds timeout)
      : stream_(stream), chunked_(chunked), timeout_(timeout) {}

  bool write(std::string_view bytes) override {
    if (bytes.empty() || !alive_) return alive_;  // an empty chunk would end the body
    alive_ = stream_.write_all(
        chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::string(bytes), timeout_);
    return alive_;
  }
  bool finish() { return alive_ && (!chunked_ || stream_.write_all("0\r\n\r\n", timeout_)); }

 private:
  HttpStream& stream_;
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

class Connection final {
 public:
  Connection(HttpStream& stream, HttpSite& site)
      : stream_(stream), site_(site), buffer_(site.limits.max_header_bytes + kReadBytes) {}

  // One request; false when the connection must be closed.
  bool serve_one() {
    Parser parser;
    parser.header_limit(static_cast<std::uint32_t>(site_.limits.max_header_bytes));
    parser.body_limit(site_.limits.max_body_bytes);
    boost::system::error_code error;
    stream_.set_read_timeout(site_.limits.keep_alive_timeout);
    http::read_header(stream_, buffer_, parser, error);
    if (error == boost::asio::error::timed_out && buffer_.size() == 0 && !parser.got_some()) return false;
    stream_.set_read_timeout(site_.limits.read_timeout);
    // A body whose end nobody knows would be read as the next request.
    if (!error && parser.get().count(http::field::transfer_encoding) > 0 && !parser.chunked())
      return refuse(400, "Transfer-Encoding: need chunked as the last one");
    const bool has_body = !error && !parser.is_done();
    std::optional<Share> body;
    if (has_body)
      body.emplace(site_.num_body_bytes, parser.content_length().value_or(site_.limits.max_body_bytes));
    if (has_body && site_.num_body_bytes > site_.limits.max_total_body_bytes)
      return refuse(503, fmt::format("more than {} bytes of requests are under way",
                                     site_.limits.max_total_body_bytes));
    if (has_body) {
      const auto expect = parser.get()[http::field::expect];
      if (boost::beast::iequals(expect, "100-continue") &&
          !stream_.write_all("HTTP/1.1 100 Continue\r\n\r\n", site_.limits.write_timeout))
        return false;
      http::read(stream_, buffer_, parser, error);
    }
    if (error) {
      const int status = status_of(error);
      return status != 0 && refuse(status, error.message());
    }
    const bool is_head = parser.get().method() == http::verb::head;
    const bool chunked = parser.get().version() >= 11;
    const bool keep_alive = parser.get().keep_alive() && !site_.stopping;
    const Share busy(site_.num_busy, 1);
    HttpResponse response = [&] {  // the request's memory goes before a stream begins
      HttpRequest request = to_request(parser, stream_);
      return site_.handler(request);
    }();
    body.reset();
    if (is_head)
      return stream_.write_all(head_of(response, keep_alive, chunked), site_.limits.write_timeout) &&
             keep_alive;
    return respond(response, keep_alive && (chunked || !response.stream), chunked);
  }

 private:
  // An answer in place of reading on; false: the connection must be closed.
  bool refuse(int status, const std::string& message) const {
    respond(site_.on_error(status, message), /*keep_alive=*/false, /*chunked=*/false);
    stream_.linger(kLinger);
    return false;
  }

  // False when the connection must be closed.
  bool respond(const HttpResponse& response, bool keep_alive, bool chunked) const {
    const std::string head = head_of(response, keep_alive, chunked);
    if (!response.stream)
      return stream_.write_all(head + response.body, site_.limits.write_timeout) && keep_alive;
    if (!stream_.write_all(head, site_.limits.write_timeout)) {
      StreamWriter dead(stream_, chunked, kNoWait);
      response.stream(dead);  // it notices at its first write, and cleans up
      return false;
    }
    StreamWriter writer(stream_, chunked, site_.limits.write_timeout);
    response.stream(writer);
    return writer.finish() && keep_alive;
  }

  HttpStream& stream_;
  HttpSite& site_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace

void serve_connection(HttpStream& stream, HttpSite& site) {
  Connection connection(stream, site);
  try {
    while (connection.serve_one()) continue;
  } catch (const std::exception& error) {  // out of memory, or a handler that broke its promise
    log(LogLevel::kError, "http: a connection ended with an error: {}", error.what());
  }
}

void turn_away(HttpStream& stream, const HttpResponse& response) {
  stream.write_all(head_of(response, /*keep_alive=*/false, /*chunked=*/false) + response.body, kNoWait);
}

}  // namespace longspan::server
