// Many streams at once through the whole server, with a scripted engine (tests/server/mock_engine.h): how
// much later than the engine made it does a token reach its client? Server, engine and clients share this
// process and its clock; what the one client thread takes is part of every number.
//
//   longspan_serve_load [STREAMS [TOKENS_PER_SECOND [SECONDS]]]        500 20 10
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/log.h"
#include "server/mock_engine.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace longspan {
namespace {

using Clock = engine::Clock;

struct Load {
  int64_t streams = 500;
  int64_t tokens_per_second = 20;  // of each stream
  int64_t seconds = 10;
  int64_t tokens() const { return tokens_per_second * seconds; }
};

// When the engine handed on each token: written by its thread, read by the client's.
class Handed {
 public:
  explicit Handed(const Load& load)
      : num_tokens_(load.tokens()), times_(static_cast<size_t>(load.streams * load.tokens())) {}
  void set(uint64_t stream, int64_t token_idx, Clock::time_point time) {
    at(static_cast<int64_t>(stream), token_idx).store(time.time_since_epoch().count());
  }
  Clock::time_point get(int64_t stream, int64_t token_idx) {
    return Clock::time_point(Clock::duration(at(stream, token_idx).load()));
  }

 private:
  std::atomic<int64_t>& at(int64_t stream, int64_t token_idx) {
    return times_[static_cast<size_t>(stream * num_tokens_ + token_idx)];
  }
  int64_t num_tokens_;
  std::vector<std::atomic<int64_t>> times_;  // [streams, tokens]
};

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    fail(ErrorKind::kEnvironment, "cannot connect to port {}", port);
  return fd;
}

std::string request_of(int64_t stream, const Load& load) {
  const std::string body = fmt::format(
      R"({{"messages":[{{"role":"user","content":"Hello"}}],"stream":true,"max_tokens":{},"seed":{}}})",
      load.tokens(), stream);
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
}

// Every client, on one thread.
class Clients {
 public:
  Clients(const Load& load, int port, Handed& handed)
      : load_(load), handed_(handed), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (int64_t i = 0; i < load.streams; ++i) {
      streams_.push_back({.fd = connect_to(port)});
      const std::string request = request_of(i, load);
      if (send(streams_.back().fd, request.data(), request.size(), 0) != static_cast<ssize_t>(request.size()))
        fail(ErrorKind::kEnvironment, "a request was not taken");
      epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<uint64_t>(i)}};
      epoll_ctl(epoll_, EPOLL_CTL_ADD, streams_.back().fd, &event);
      // Spread over a second, as people come.
      std::this_thread::sleep_for(std::chrono::microseconds(1'000'000 / load.streams));
    }
    all_there_ = Clock::now();
  }
  ~Clients() {
    for (const Stream& stream : streams_) close(stream.fd);
    close(epoll_);
  }

  // Until every stream has ended. -> added latencies in ms, of the time when all streams ran
  std::vector<double> run() {
    std::vector<epoll_event> events(256);
    while (num_ended_ < load_.streams) {
      const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 60'000);
      if (count <= 0) fail(ErrorKind::kEnvironment, "{} streams are silent", load_.streams - num_ended_);
      for (int i = 0; i < count; ++i) read(static_cast<int64_t>(events[static_cast<size_t>(i)].data.u64));
    }
    return std::move(latencies_);
  }

 private:
  struct Stream {
    int fd;
    std::string rest = {};  // a line begun
    int64_t num_tokens = 0;
    bool ended = false;
  };

  void read(int64_t index) {
    Stream& stream = streams_[static_cast<size_t>(index)];
    char buffer[16384];
    const ssize_t count = recv(stream.fd, buffer, sizeof(buffer), 0);
    const Clock::time_point now = Clock::now();
    if (count <= 0) fail(ErrorKind::kEnvironment, "stream {} broke off", index);
    stream.rest.append(buffer, static_cast<size_t>(count));
    size_t begin = 0;
    for (size_t end = stream.rest.find('\n'); end != std::string::npos; end = stream.rest.find('\n', begin)) {
      take_line(std::string_view(stream.rest).substr(begin, end - begin), index, now);
      begin = end + 1;
    }
    stream.rest.erase(0, begin);
  }

  void take_line(std::string_view line, int64_t index, Clock::time_point now) {
    constexpr std::string_view kContent = R"("content":")";
    Stream& stream = streams_[static_cast<size_t>(index)];
    if (line == "data: [DONE]") {
      ++num_ended_;
      epoll_ctl(epoll_, EPOLL_CTL_DEL, stream.fd, nullptr);
      if (stream.num_tokens != load_.tokens())
        fail(ErrorKind::kEnvironment, "stream {}: got {} tokens, need {}", index, stream.num_tokens,
             load_.tokens());
      return;
    }
    const size_t at = line.find(kContent);
    if (at == line.npos) return;
    const size_t text = at + kContent.size();
    const auto num_tokens = static_cast<int64_t>(line.find('"', text) - text);  // one letter each
    for (int64_t i = 0; i < num_tokens; ++i) {
      const Clock::time_point made = handed_.get(index, stream.num_tokens++);
      if (made >= all_there_)
        latencies_.push_back(std::chrono::duration<double, std::milli>(now - made).count());
    }
  }

  Load load_;
  Handed& handed_;
  int epoll_;
  std::vector<Stream> streams_;
  Clock::time_point all_there_;
  int64_t num_ended_ = 0;
  std::vector<double> latencies_;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void run(const Load& load) {
  const std::string model = std::string(LONGSPAN_SOURCE_DIR) + "/models/longspan-tiny";
  const text::Tokenizer tokenizer = text::Tokenizer::load(model);
  const text::ChatTemplate chat_template = text::ChatTemplate::load(model);
  Handed handed(load);
  testing::mock_script() = {
      .tokens_per_second = static_cast<double>(load.tokens_per_second),
      .tokens = tokenizer.encode("a", text::SpecialTokens::kAsText),
      .on_token = [&](uint64_t seed, int64_t idx, Clock::time_point time) { handed.set(seed, idx, time); }};
  engine::Engine engine(
      {.model = model, .max_num_seqs = static_cast<int32_t>(load.streams), .max_waiting = load.streams});
  server::ServerOptions options{.port = 0, .model_names = {"mock"}};
  options.log_requests = false;
  options.http.max_connections = static_cast<int>(load.streams) + 16;
  server::Server server(engine, tokenizer, chat_template, options);
  server.start();
  const double cpu_before = cpu_seconds();
  const Clock::time_point begin = Clock::now();
  std::vector<double> latencies = Clients(load, server.port(), handed).run();
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(latencies.begin(), latencies.end());
  const auto percentile = [&](double share) {
    return latencies[static_cast<size_t>(share * static_cast<double>(latencies.size() - 1))];
  };
  fmt::print("{} streams of {} tokens/s for {} s: {} tokens, {:.0f} a second\n", load.streams,
             load.tokens_per_second, load.seconds, latencies.size(),
             static_cast<double>(load.streams * load.tokens()) / wall);
  fmt::print("added latency in ms: p50 {:.2f}, p90 {:.2f}, p99 {:.2f}, p99.9 {:.2f}, most {:.2f}\n",
             percentile(0.5), percentile(0.9), percentile(0.99), percentile(0.999), latencies.back());
  fmt::print("{:.2f} processors busy, clients included\n", (cpu_seconds() - cpu_before) / wall);
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  longspan::Load load;
  int64_t* const values[] = {&load.streams, &load.tokens_per_second, &load.seconds};
  for (int i = 1; i < argc && i <= 3; ++i) {
    const std::string_view text(argv[i]);
    if (std::from_chars(text.data(), text.data() + text.size(), *values[i - 1]).ec != std::errc() ||
        *values[i - 1] < 1) {
      fmt::print(stderr, "usage: longspan_serve_load [STREAMS [TOKENS_PER_SECOND [SECONDS]]]\n");
      return 2;
    }
  }
  try {
    longspan::run(load);
  } catch (const std::exception& error) {
    fmt::print(stderr, "longspan_serve_load: {}\n", error.what());
    return 3;
  }
  return 0;
}
