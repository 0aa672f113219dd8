// What a service manager wants to know, in systemd's sd_notify protocol: one datagram to $NOTIFY_SOCKET.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace longspan::server {

// "READY=1", "STOPPING=1". Does nothing where nobody listens; never fails.
void notify_service_manager(const char* state);

// Says WATCHDOG=1 twice in every $WATCHDOG_USEC for as long as `well` does, on a thread of its own; has none
// where no watchdog was asked for, or another process was meant ($WATCHDOG_PID). A silence makes systemd
// restart the server.
class Watchdog {
 public:
  explicit Watchdog(std::function<bool()> well);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace longspan::server
