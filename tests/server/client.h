// A small HTTP client over a plain socket, so that tests see the bytes that a server really sends.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <cstdint>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace longspan::testing {

using Json = nlohmann::ordered_json;

struct Reply {
  int status = 0;                              // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined

  Json json() const { return Json::parse(body); }
  // The data of server-sent events, comments and event names left out; "[DONE]" stays.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event without its blank line";
      if (end == std::string::npos) break;
      const std::string block = body.substr(at, end - at);
      const size_t data = block.rfind("data: ", 0) == 0 ? 0 : block.find("\ndata: ");
      if (data != std::string::npos) out.push_back(block.substr(block.find("data: ") + 6));
      at = end + 2;
    }
    return out;
  }
};

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const timeval limit{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }
  // Reads until `text` has come or the connection ends; what was read stays for read_reply().
  bool read_until(const std::string& text) {
    while (received_.find(text) == std::string::npos)
      if (!read_more()) return false;
    return true;
  }
  Reply read_head() {
    Reply reply;
    if (!read_until("\r\n\r\n")) return reply;
    const size_t head_end = received_.find("\r\n\r\n");
    parse_head(received_.substr(0, head_end), reply);
    received_.erase(0, head_end + 4);
    return reply;
  }
  Reply read_reply() {
    Reply reply = read_head();
    if (reply.status == 0 || reply.status == 100) return reply;
    if (reply.headers["transfer-encoding"] == "chunked") {
      while (read_chunk(reply.body)) continue;
    } else {
      const size_t size = std::stoul(reply.headers["content-length"]);
      while (received_.size() < size && read_more()) continue;
      reply.body = received_.substr(0, size);
      received_.erase(0, size);
    }
    return reply;
  }

  Reply request(const std::string& method, const std::string& path, const std::string& body = "",
                const std::string& headers = "") {
    send(method + " " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + headers + "\r\n" + body);
    return method == "HEAD" ? read_head() : read_reply();
  }
  Reply post(const std::string& path, const Json& body) {
    return request("POST", path, body.dump(), "Content-Type: application/json\r\n");
  }

 private:
  bool read_more() {
    char buffer[65536];
    ssize_t count = 0;
    do count = recv(fd_, buffer, sizeof(buffer), 0);
    while (count < 0 && errno == EINTR);  // a stopped and continued process ends a wait with a time limit
    if (count <= 0) return false;
    received_.append(buffer, static_cast<size_t>(count));
    return true;
  }
  bool read_chunk(std::string& body) {
    if (!read_until("\r\n")) return false;
    const size_t line_end = received_.find("\r\n");
    const size_t size = std::stoul(received_.substr(0, line_end), nullptr, 16);
    while (received_.size() < line_end + 2 + size + 2)
      if (!read_more()) return false;
    body += received_.substr(line_end + 2, size);
    received_.erase(0, line_end + 2 + size + 2);
    return size > 0;
  }
  static void parse_head(const std::string& head, Reply& reply) {
    reply.status = std::stoi(head.substr(head.find(' ') + 1));
    for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at + 2)) {
      const size_t colon = head.find(':', at + 2);
      if (colon == std::string::npos) break;
      std::string name = head.substr(at + 2, colon - at - 2);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      const size_t end = std::min(head.find("\r\n", colon), head.size());
      reply.headers[name] = head.substr(colon + 2, end - colon - 2);
    }
  }

  int fd_;
  std::string received_;
};

}  // namespace longspan::testing
