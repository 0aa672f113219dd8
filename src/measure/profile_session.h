// ProfileSession: profiles of a running server, one at a time, each in a folder of its own below one that the
// server was given. Nothing of it costs anything while none is taken.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "server/profile_control.h"

namespace longspan::measure {

struct ProfileOptions {
  std::filesystem::path directory;  // of all profiles; made when the first one starts
  std::string model_name;
  int threads = 0;                     // of the cpu device
  std::chrono::seconds patience{300};  // for the step under way, at start and at stop
  int64_t max_events = engine::kMaxTraceEvents;
  // Of an engine on a device; where it throws kEnvironment operations are timed at their launch.
  std::function<std::unique_ptr<ops::device::KernelClock>()> start_clock = ops::device::start_kernel_clock;
};

// Thread-safe. Borrows the engine. The destructor stops what is under way, its data kept.
class ProfileSession final : public server::ProfileControl {
 public:
  ProfileSession(engine::Engine& engine, ProfileOptions options);
  ~ProfileSession() override;

  server::Json start(const std::string& name) override;
  server::Json stop() override;
  bool running() const;

 private:
  // One profile under way: its folder, its trace, and the thread that writes what the engine's hands over.
  class Recorder;

  // Of the device, or null, and then why.
  struct Clock {
    std::unique_ptr<ops::device::KernelClock> clock;
    std::string missing;
  };

  std::unique_lock<std::mutex> lock_now();
  Clock start_clock() const;
  server::Json session_json(const std::string& name, const Clock& clock) const;

  engine::Engine& engine_;
  const ProfileOptions options_;
  mutable std::mutex mutex_;
  std::unique_ptr<Recorder> recorder_;  // guarded by mutex_
};

}  // namespace longspan::measure
