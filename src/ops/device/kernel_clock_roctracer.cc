// Kernel times on AMD and Hygon, by roctracer's activity records. The library is looked for when the first
// clock starts, and stays; nothing needs it before.
#include <dlfcn.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/device/hip_library.h"
#include "ops/device/kernel_event_log.h"
#include "ops/device/roctracer.h"

namespace longspan::ops::device::roctracer {
namespace {

constexpr size_t kPoolBytes = size_t{2} << 20;  // 32,768 records

// Whatever puts work to a queue, in our launches and in libraries: around a call of these the program's own
// id is recorded. Which of them there are differs between versions.
constexpr const char* kLaunches[] = {"hipLaunchKernel",
                                     "hipExtLaunchKernel",
                                     "hipModuleLaunchKernel",
                                     "hipExtModuleLaunchKernel",
                                     "hipHccModuleLaunchKernel",
                                     "hipLaunchCooperativeKernel",
                                     "hipGraphLaunch",
                                     "hipMemcpy",
                                     "hipMemcpyAsync",
                                     "hipMemcpyWithStream",
                                     "hipMemcpy2DAsync",
                                     "hipMemset",
                                     "hipMemsetAsync"};
constexpr HipOp kOps[] = {HipOp::kDispatch, HipOp::kCopy};

template <class Fn>
void find_function(void* library, const std::string& file, const char* name, Fn& out) {
  out = reinterpret_cast<Fn>(::dlsym(library, name));
  if (out == nullptr) fail(ErrorKind::kEnvironment, "{} has no {}: need roctracer 4", file, name);
}

Functions functions_of(void* library, const std::string& file) {
  Functions out{};
  const auto find = [&](const char* name, auto& function) { find_function(library, file, name, function); };
  find("roctracer_version_major", out.version_major);
  find("roctracer_error_string", out.error_string);
  find("roctracer_set_properties", out.set_properties);
  find("roctracer_op_code", out.op_code);
  find("roctracer_open_pool_expl", out.open_pool);
  find("roctracer_close_pool_expl", out.close_pool);
  find("roctracer_enable_op_activity_expl", out.enable_op_activity);
  find("roctracer_disable_op_activity", out.disable_op_activity);
  find("roctracer_flush_activity_expl", out.flush_activity);
  find("roctracer_next_record", out.next_record);
  find("roctracer_get_timestamp", out.get_timestamp);
  find("roctracer_activity_push_external_correlation_id", out.push_external_id);
  find("roctracer_activity_pop_external_correlation_id", out.pop_external_id);
  if (const uint32_t version = out.version_major(); version != 4)
    fail(ErrorKind::kEnvironment, "{}: got version {} of roctracer, need 4", file, version);
  return out;
}

Functions load_functions(std::string_view names) {
  for (const std::string& file : hip_library_files(names)) {
    std::string reason;
    if (void* const library = open_hip_library(file, reason)) return functions_of(library, file);
    if (!reason.empty()) fail(ErrorKind::kEnvironment, "{}", reason);
  }
  fail(ErrorKind::kEnvironment, "found none of {}: install roctracer, or put its folder into LD_LIBRARY_PATH",
       names);
}

class RoctracerClock final : public KernelClock {
 public:
  explicit RoctracerClock(std::string_view names) : api_(load_functions(names)) {
    if (runs_.exchange(true)) fail(ErrorKind::kEnvironment, "another kernel clock runs");
    try {
      start();
    } catch (...) {
      RoctracerClock::stop();
      throw;
    }
  }
  ~RoctracerClock() override { RoctracerClock::stop(); }

  void open(uint32_t call) override { (void)api_.push_external_id(call); }
  void close() override { (void)api_.pop_external_id(nullptr); }

  KernelEvents take() override {
    {
      const std::lock_guard lock(pool_mutex_);
      if (pool_ != nullptr) (void)api_.flush_activity(pool_);
    }
    const std::lock_guard lock(log_mutex_);
    return log_.take();
  }

  void stop() override {
    const std::lock_guard lock(pool_mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (const auto& [domain, op] : enabled_) (void)api_.disable_op_activity(domain, op);
    if (pool_ != nullptr) {
      (void)api_.flush_activity(pool_);
      (void)api_.close_pool(std::exchange(pool_, nullptr));
    }
    runs_ = false;
  }

 private:
  void start() {
    check("API records", api_.set_properties(Domain::kHipApi, nullptr));
    const PoolProperties properties{
        .mode = 0,
        .buffer_bytes = kPoolBytes,
        .allocate = nullptr,
        .allocate_argument = nullptr,
        .take_buffer = [](const char* begin, const char* end,
                          void* clock) { static_cast<RoctracerClock*>(clock)->read(begin, end); },
        .take_argument = this};
    check("a pool of records", api_.open_pool(&properties, &pool_));
    offset_ns_ = measure_offset();
    for (const HipOp op : kOps) enable("records of kernels", Domain::kHipOps, static_cast<uint32_t>(op));
    size_t num_launches = 0;
    for (const char* const launch : kLaunches) {
      uint32_t op = 0;
      if (api_.op_code(Domain::kHipApi, launch, &op, nullptr) != Status::kSuccess) continue;
      enable(launch, Domain::kHipApi, op);
      ++num_launches;
    }
    if (num_launches == 0)
      fail(ErrorKind::kEnvironment, "roctracer knows no function that launches a kernel");
  }

  void enable(const char* what, Domain domain, uint32_t op) {
    check(what, api_.enable_op_activity(domain, op, pool_));
    enabled_.emplace_back(domain, op);
  }

  void check(const char* what, Status status) const {
    if (status == Status::kSuccess) return;
    const char* const text = api_.error_string();
    fail(ErrorKind::kEnvironment, "roctracer refuses ({}): {}", what, text == nullptr ? "" : text);
  }

  // What to add to its time for the steady clock's: from the pair of readings with the least time between.
  int64_t measure_offset() const {
    int64_t offset = 0, least = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 16; ++i) {
      uint64_t theirs = 0;
      const int64_t before = steady_now_ns();
      check("its time", api_.get_timestamp(&theirs));
      const int64_t after = steady_now_ns();
      if (after - before >= least) continue;
      least = after - before;
      offset = before + least / 2 - static_cast<int64_t>(theirs);
    }
    return offset;
  }

  void read(const char* begin, const char* end) {
    const std::lock_guard lock(log_mutex_);
    const auto* record = reinterpret_cast<const Record*>(begin);
    const auto* const last = reinterpret_cast<const Record*>(end);
    while (record < last) {
      add(*record);
      if (api_.next_record(record, &record) != Status::kSuccess) return;
    }
  }

  void add(const Record& record) {
    const auto ticket = static_cast<uint32_t>(record.correlation_id);
    if (record.domain == static_cast<uint32_t>(Domain::kExtApi)) {
      if (record.op == static_cast<uint32_t>(ExtOp::kExternalId))
        log_.add({.ticket = ticket,
                  .value = static_cast<uint32_t>(record.external_id),
                  .kind = KernelEvent::Kind::kCall});
    } else if (record.domain == static_cast<uint32_t>(Domain::kHipOps)) {
      if (record.begin_ns == 0 || record.end_ns < record.begin_ns) return;  // no times were taken
      const bool kernel = record.op == static_cast<uint32_t>(HipOp::kDispatch);
      log_.add({.begin_ns = static_cast<int64_t>(record.begin_ns) + offset_ns_,
                .end_ns = static_cast<int64_t>(record.end_ns) + offset_ns_,
                .ticket = ticket,
                .value = kernel ? log_.index_of(record.kernel_name) : 0,
                .kind = kernel ? KernelEvent::Kind::kKernel : KernelEvent::Kind::kCopy});
    }
  }

  static inline std::atomic<bool> runs_ = false;

  const Functions api_;
  std::mutex pool_mutex_;
  void* pool_ = nullptr;  // guarded by pool_mutex_, as the two below
  std::vector<std::pair<Domain, uint32_t>> enabled_;
  bool stopped_ = false;
  int64_t offset_ns_ = 0;
  std::mutex log_mutex_;
  KernelEventLog log_;  // guarded by log_mutex_
};

}  // namespace

std::unique_ptr<KernelClock> start_clock(std::string_view names) {
  return std::make_unique<RoctracerClock>(names);
}

}  // namespace longspan::ops::device::roctracer
