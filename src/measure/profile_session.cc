#include "measure/profile_session.h"

#include <chrono>

#include "core/log.h"
#include "core/thread_pool.h"
#include "measure/environment.h"
#include "measure/peak_cache.h"
#include "measure/profile_file.h"
#include "measure/profile_report.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using server::WireError;

constexpr std::chrono::milliseconds kWriterTick{500};

[[noreturn]] void refuse_profile(int status, const char* code, std::string message) {
  throw WireError{
      .status = status, .type = server::error_type(status), .code = code, .message = std::move(message)};
}

}  // namespace

class ProfileSession::Recorder {
 public:
  Recorder(fs::path folder, std::string name, Json session, int64_t max_events,
           std::shared_ptr<ops::device::KernelClock> clock)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        session_(std::move(session)),
        clock_(std::move(clock)),
        trace_(std::make_shared<engine::StepTrace>(max_events, clock_)),
        file_(folder_) {
    if (clock_) device_file_ = std::make_unique<DeviceEventWriter>(folder_);
    save_session();
    thread_ = std::thread([this] { write_blocks(); });
  }
  ~Recorder() {
    given_up_ = true;
    if (thread_.joinable()) thread_.join();
  }

  const std::string& name() const { return name_; }
  const fs::path& folder() const { return folder_; }
  const std::shared_ptr<engine::StepTrace>& trace() const { return trace_; }

  // Waits until all that the engine has handed over is on disk; then makes the report. `ended`: the engine
  // has seen the end of the window.
  Json finish(bool ended) {
    if (!ended) given_up_ = true;
    thread_.join();
    if (clock_) {
      clock_->stop();
      write_device_events();
    }
    session_["ending"] = {{"finished", ended},
                          {"stopped_unix_seconds", now_unix_seconds()},
                          {"full", trace_->full()},
                          {"lost_events", trace_->num_lost()},
                          {"lost_device_events", lost_device_events_},
                          {"disk_failed", disk_failed_}};
    save_session();
    return write_profile_report(folder_);
  }

 private:
  void save_session() const { write_text(folder_ / kSessionFile, session_.dump(2) + "\n"); }

  void write_blocks() {
    while (!trace_->done() && !given_up_) {
      write_block(trace_->take(kWriterTick));
      if (clock_) write_device_events();
    }
    while (true) {  // what is left where nobody waits for the end
      std::vector<engine::TraceEvent> block = trace_->take(std::chrono::milliseconds(0));
      if (block.empty()) return;
      write_block(std::move(block));
    }
  }

  void write_block(std::vector<engine::TraceEvent> block) {
    if (block.empty()) return;
    check_disk(file_.append(block));
    trace_->give_back(std::move(block));
  }

  void write_device_events() {
    const ops::device::KernelEvents events = clock_->take();
    lost_device_events_ = events.num_lost;
    check_disk(device_file_->append(events));
  }

  void check_disk(bool good) {
    if (good || disk_failed_) return;
    disk_failed_ = true;
    log(LogLevel::kError, "profile {}: the disk refuses its events", name_);
  }

  const fs::path folder_;
  const std::string name_;
  Json session_;
  const std::shared_ptr<ops::device::KernelClock> clock_;  // or null
  const std::shared_ptr<engine::StepTrace> trace_;         // also the engine's, who may need it longer
  EventWriter file_;
  std::unique_ptr<DeviceEventWriter> device_file_;  // with a clock
  bool disk_failed_ = false;                        // the thread's, then finish()'s, as the next
  int64_t lost_device_events_ = 0;
  std::atomic<bool> given_up_ = false;
  std::thread thread_;
};

ProfileSession::ProfileSession(engine::Engine& engine, ProfileOptions options)
    : engine_(engine), options_(std::move(options)) {}

ProfileSession::~ProfileSession() {
  if (!running()) return;
  try {
    const Json stopped = stop();
    log(LogLevel::kInfo, "profile {}: the server ends, and with it the profile; it is in {}",
        stopped["name"].get<std::string>(), stopped["directory"].get<std::string>());
  } catch (const WireError& error) {
    log(LogLevel::kWarn, "profile: {}", error.message);
  } catch (const std::exception& error) {
    log(LogLevel::kWarn, "profile: {}", error.what());
  }
}

bool ProfileSession::running() const {
  const std::lock_guard lock(mutex_);
  return recorder_ != nullptr;
}

// Who comes while another waits for the engine is told so; else they would take the server's threads.
std::unique_lock<std::mutex> ProfileSession::lock_now() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) refuse_profile(409, "profile_busy", "a profile is being started or stopped");
  return lock;
}

ProfileSession::Clock ProfileSession::start_clock() const {
  if (!engine_.on_device()) return {};
  try {
    return {options_.start_clock(), ""};
  } catch (const Error& error) {
    log(LogLevel::kWarn, "profile: no kernel times: {}", error.what());
    return {nullptr, error.what()};
  }
}

Json ProfileSession::session_json(const std::string& name, const Clock& clock) const {
  const engine::EngineInfo& info = engine_.info();
  const Environment environment = read_environment(AskDevices::kNo);
  const int threads = options_.threads > 0 ? options_.threads : usable_cpus();
  const std::optional<Peaks> peaks =
      cached_peaks(engine_.on_device() ? PeakKey{.machine = info.device} : this_machine(threads));
  return {{"kind", "profile session"},
          {"name", name},
          {"model", options_.model_name},
          {"device", info.device},
          {"host_memory", !engine_.on_device()},
          {"no_kernel_times", clock.missing},
          {"dtype", dtype_name(info.dtype)},
          {"page_tokens", info.page_plan.page_tokens},
          {"max_model_len", info.max_model_len},
          {"cpu", environment.machine.cpu_model},
          {"threads", threads},
          {"started_unix_seconds", now_unix_seconds()},
          {"peak", peaks ? to_json(*peaks) : Json(nullptr)},
          {"environment", to_json(environment)}};
}

Json ProfileSession::start(const std::string& name) {
  if (const std::string fault = profile_name_fault(name); !fault.empty())
    server::fail_field("name", "{}", fault);
  const std::unique_lock lock = lock_now();
  if (recorder_)
    refuse_profile(409, "profile_running", fmt::format("the profile '{}' runs", recorder_->name()));
  const fs::path folder = fs::absolute(options_.directory / name);
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (!error && !fs::create_directory(folder, error) && !error)
    refuse_profile(409, "profile_exists",
                   fmt::format("{} is there already: choose another name", folder.string()));
  if (error) fail(ErrorKind::kEnvironment, "{}: {}", folder.string(), error.message());
  Clock clock = start_clock();
  Json session = session_json(name, clock);
  auto recorder = std::make_unique<Recorder>(folder, name, std::move(session), options_.max_events,
                                             std::move(clock.clock));
  if (!engine_.set_trace(recorder->trace(), options_.patience)) {
    recorder.reset();
    fs::remove_all(folder, error);
    refuse_profile(503, "engine_busy", "the step under way does not end: nothing was started");
  }
  recorder_ = std::move(recorder);
  log(LogLevel::kInfo, "profile {}: started", name);
  return {{"name", name}, {"directory", folder.string()}};
}

Json ProfileSession::stop() {
  const std::unique_lock lock = lock_now();
  if (!recorder_) refuse_profile(409, "no_profile", "no profile runs");
  const bool ended = engine_.set_trace(nullptr, options_.patience);
  const std::unique_ptr<Recorder> recorder = std::move(recorder_);
  const Json report = recorder->finish(ended);
  log(LogLevel::kInfo, "profile {}: stopped after {:.1f} s, {} steps, in {}", recorder->name(),
      report["window"]["seconds"].get<double>(), report["window"]["steps"].get<int64_t>(),
      recorder->folder().string());
  return {{"name", recorder->name()},
          {"directory", recorder->folder().string()},
          {"finished", ended},
          {"window", report["window"]},
          {"classes", report["classes"]},
          {"accounted_percent", report["accounted_percent"]},
          {"notes", report["notes"]}};
}

}  // namespace longspan::measure
